"""Short labels for configurations: column headings, cell texts, and which fields vary within a task.

The command line, the adapter's README and charts share them, so that a field of JobConfig has one name everywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from contract.compatibility.lenient_documents import is_readable, value_of
from contract.job_config import JobConfig
from contract.wording.configuration_numbers import EXACT, LEAST, digits_apart, number_text

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
TO_BE_PROPOSED = "to be proposed"  # of a job in a later round of a tpe search, instead of its configuration
MAIN = ("learning_rate", "rank", "batch_size", "beta")  # what a configuration is told by, beside what varies
Digits = Mapping[str, int]  # by field, the significant digits of its values; a field that is lacking has the fewest
ALL_DIGITS: Digits = dict.fromkeys(HEADINGS, EXACT)
_BARE = ("schedule", "target_modules", "rslora")  # fields whose values need no name beside them


def varying(configs: Iterable[JobConfig]) -> list[str]:
    """The fields in which the configurations differ, in the model's order.

    Always includes the learning rate; alpha only if its ratio to the rank varies.
    """
    known = list(configs)
    names = {name for name in JobConfig.model_fields if len({value_of(config, name) for config in known}) > 1}
    if len({config.alpha / config.rank for config in known}) <= 1:
        names.discard("alpha")
    return [name for name in JobConfig.model_fields if name in names or name == "learning_rate"]


def digits_of(configs: Iterable[JobConfig]) -> Digits:
    """As few digits as tell the numbers of these configurations apart, field by field."""
    known = list(configs)
    return {name: digits_apart(value_of(config, name) for config in known) for name in HEADINGS}


def cell(config: JobConfig, name: str, digits: Digits = MappingProxyType({})) -> str:
    """The value of one field as the text of a table cell; `?` where a stored configuration's cannot be read."""
    if not is_readable(config, name):
        return "?"
    value = getattr(config, name)
    match name:
        case "target_modules":
            return "+".join(module.removesuffix("_proj") for module in value)
        case "rslora":
            return "rsLoRA" if value else "LoRA"
    if value is None:
        return ""
    return value if isinstance(value, str) else number_text(value, digits.get(name, LEAST))


def label(config: JobConfig, names: Sequence[str], digits: Digits = MappingProxyType({})) -> str:
    """A short label for the configuration, from the given fields. `digits`: those of the configurations beside it."""
    words = []
    for name in names:
        if text := cell(config, name, digits):
            words.append(text if name in _BARE else f"{HEADINGS[name]} {text}")
    return ", ".join(words)


def winner_label(config: JobConfig, among: Iterable[JobConfig]) -> str:
    """How the winner among a task's configurations is told: by the main fields, and those in which they differ."""
    known = list(among)
    varied = varying(known)
    return label(config, [name for name in JobConfig.model_fields if name in MAIN or name in varied], digits_of(known))
