"""Short words for configurations: column headings, cell texts, and which fields vary within a task.

The command line, the adapter's README and charts share them, so that a field of JobConfig is named alike everywhere.
"""

from collections.abc import Iterable, Mapping, Sequence

from contract.search_space import JobConfig

HEADINGS: Mapping[str, str] = {
    "learning_rate": "lr",
    "rank": "rank",
    "alpha": "alpha",
    "batch_size": "batch",
    "seed": "seed",
    "dropout": "dropout",
    "weight_decay": "decay",
    "schedule": "schedule",
    "lr_warmup_ratio": "lr warmup",
    "target_modules": "modules",
    "rslora": "scale",
    "beta": "beta",
}
_BARE = ("schedule", "target_modules", "rslora")  # their values say by themselves what they are


def varying(configs: Iterable[JobConfig]) -> list[str]:
    """The fields in which the configurations differ, in the model's order.

    The learning rate is always among them; alpha only where it is not the same multiple of every rank.
    """
    known = list(configs)
    names = {name for name in JobConfig.model_fields if len({getattr(config, name) for config in known}) > 1}
    if len({config.alpha / config.rank for config in known}) <= 1:
        names.discard("alpha")
    return [name for name in JobConfig.model_fields if name in names or name == "learning_rate"]


def cell(config: JobConfig, name: str) -> str:
    """The value of one field, for a column under its heading."""
    value = getattr(config, name)
    match name:
        case "target_modules":
            return "+".join(module.removesuffix("_proj") for module in value)
        case "rslora":
            return "rsLoRA" if value else "LoRA"
        case "lr_warmup_ratio":
            return f"{value:.3g}"
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:g}"


def label(config: JobConfig, names: Sequence[str]) -> str:
    """The configuration in few words, by these of its fields."""
    words = []
    for name in names:
        if text := cell(config, name):
            words.append(text if name in _BARE else f"{HEADINGS[name]} {text}")
    return ", ".join(words)
