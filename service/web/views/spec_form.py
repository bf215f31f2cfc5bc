"""The new-task form's fields and the spec that they make, both ways. Field names are paths in the spec. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contract.evaluation.text_evaluation import Evaluation
from contract.search_space import MODULES

Fields = Mapping[str, str]

MODULE_SETS = {
    "all": list(MODULES),
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "q and v": ["q_proj", "v_proj"],
    "MLP": ["gate_proj", "up_proj", "down_proj"],
}
SCHEDULES = ("constant", "linear", "cosine")
POLICIES = ("alto_guarded", "alto", "asha", "none")
METRICS = {  # of generated texts, those that need no settings
    "rouge_l": "ROUGE-L: words in the reference's order",
    "bleu": "BLEU: runs of words shared with the reference",
    "chrf": "chrF: runs of characters shared with the reference",
    "exact_match": "the reference exactly",
    "contains": "contains the reference",
    "number": "the reference's number after ####",
    "json_valid": "valid JSON",
}
_PLAIN = {name: Evaluation.model_validate({"metrics": [{"type": name}]}).metrics[0].model_dump(mode="json") for name in METRICS}


class Unreadable(ValueError):
    """A text is no value of its field's kind."""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Unreadable(f"{text!r} is no number; write it as 0.0003 or 3e-4") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Unreadable(f"{text!r} is no whole number") from None


def _text(text: str) -> str:
    return text


Read = Callable[[str], Any]
_ONE: dict[str, Read] = {
    "name": _text,
    "base_model": _text,
    "dataset.file_id": _text,
    "dataset.validation_file_id": _text,
    "dataset.validation_fraction": _number,
    "objective.type": _text,
    "precision": _text,
    "search_space.method": _text,
    "search_space.n": _whole,
    "training.epochs": _whole,
    "training.max_steps": _whole,
    "training.max_seq_len": _whole,
    "early_exit.policy": _text,
    "early_exit.warmup_fraction": _number,
    "early_exit.keep_fraction": _number,
    "early_exit.eval_every": _whole,
    "evaluation.max_prompts": _whole,
    "gpus": _whole,
    "max_gpus": _whole,
    "priority": _whole,
    "not_before": _text,
    "deadline": _text,
}
_LISTS: dict[str, Read] = {
    "search_space.learning_rate": _number,
    "search_space.rank": _whole,
    "search_space.alpha_ratio": _number,
    "search_space.batch_size": _whole,
    "search_space.dropout": _number,
    "search_space.weight_decay": _number,
    "search_space.lr_warmup_ratio": _number,
    "search_space.seed": _whole,
}
LABELS: Fields = {  # in the order of the page
    "dataset.file_id": "Training file",
    "dataset.validation_file_id": "Validation file",
    "dataset.validation_fraction": "Part held out",
    "base_model": "Base model",
    "precision": "Precision",
    "objective.type": "Objective",
    "name": "Name",
    "search_space.method": "Method",
    "search_space.n": "Jobs to draw",
    "search_space.learning_rate": "Learning rates",
    "search_space.rank": "Ranks",
    "search_space.batch_size": "Batch sizes",
    "search_space.alpha_ratio": "Alpha / rank",
    "search_space.dropout": "Dropout",
    "search_space.weight_decay": "Weight decay",
    "search_space.seed": "Seeds",
    "search_space.schedule": "Schedules",
    "search_space.target_modules": "Modules",
    "training.epochs": "Epochs",
    "training.max_steps": "Steps at most",
    "training.max_seq_len": "Longest row",
    "early_exit.policy": "Stop early",
    "early_exit.warmup_fraction": "Warmup",
    "early_exit.keep_fraction": "Kept after warmup",
    "evaluation.metrics": "Metrics",
    "evaluation.max_prompts": "Prompts",
    "gpus": "GPUs",
    "max_gpus": "GPUs at most",
    "priority": "Priority",
    "not_before": "Not before",
    "deadline": "Deadline",
    "labels": "Labels",
}
DEFAULTS: Fields = {
    "objective.type": "sft",
    "precision": "bf16",
    "search_space.method": "grid",
    "search_space.learning_rate": "1e-4, 3e-4, 1e-3, 3e-3",
    "search_space.rank": "8, 16",
    "search_space.batch_size": "4, 8",
    "training.epochs": "3",
    "training.max_seq_len": "1024",
    "early_exit.policy": "alto_guarded",
    "early_exit.warmup_fraction": "0.1",
    "early_exit.keep_fraction": "0.25",
    "evaluation.max_prompts": "64",
    "gpus": "1",
    "priority": "1",
    "modules": "all",
    "schedule": "constant",
}


def spec_of_form(
    fields: Fields, schedules: list[str], modules: list[str], metrics: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec that the form asks for, unchecked, and what cannot be read, by its path in the spec: the spec holds it as typed.
    Empty fields are left out."""
    spec: dict[str, Any] = {}
    mistakes: dict[str, str] = {}

    def value(path: str, read: Read, text: str) -> Any:
        try:
            return read(text)
        except Unreadable as error:
            mistakes[path] = str(error)
            return text

    idle = set() if fields.get("search_space.method") == "random" else {"search_space.n"}
    if fields.get("evaluation"):
        _put(spec, "evaluation.metrics", [value("evaluation.metrics", _metric, one) for one in metrics])
    else:
        idle.add("evaluation.max_prompts")
    for path, read in _ONE.items():
        if path not in idle and (text := fields.get(path, "").strip()):
            _put(spec, path, value(path, read, text))
    for path, read in _LISTS.items():
        if words := fields.get(path, "").replace(",", " ").split():
            _put(spec, path, [value(f"{path}[{at}]", read, word) for at, word in enumerate(words)])
    if schedules and schedules != ["constant"]:
        _put(spec, "search_space.schedule", schedules)
    if modules and modules != ["all"]:
        _put(spec, "search_space.target_modules", [MODULE_SETS[name] for name in modules if name in MODULE_SETS])
    if fields.get("search_space.method") == "random" and not fields.get("search_space.n", "").strip():
        mistakes["search_space.n"] = "a random draw needs the number of jobs to draw"
    labels = [line.partition("=") for line in fields.get("labels", "").splitlines() if line.strip()]
    if without := [key for key, equals, _ in labels if not equals]:
        mistakes["labels"] = f"{', '.join(map(repr, without))}: no '='; write one key=value a line"
    if labels:
        spec["labels"] = {key.strip(): value.strip() for key, _, value in labels}
    return spec, mistakes


def field_name(path: str) -> str:
    """The form's field for a path in the spec: of a list's value, its list."""
    name = path.partition("[")[0]
    return "labels" if name.startswith("labels.") else name


def _metric(said: str) -> Any:
    """A metric by its type, or as JSON if it has settings."""
    try:
        return json.loads(said) if said.startswith("{") else {"type": said}
    except ValueError:
        raise Unreadable(f"{said!r} is no JSON") from None


def fields_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """A spec as the form's fields, as far as the form has them."""
    found = {}
    for path in (*_ONE, *_LISTS):
        value: Any = spec
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, list):
            found[path] = ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value)
        elif value is not None:
            found[path] = f"{value:g}" if isinstance(value, float) else str(value)
    found["labels"] = "\n".join(f"{key}={value}" for key, value in spec.get("labels", {}).items())
    if spec.get("evaluation"):
        found["evaluation"] = "1"
    return {"evaluation.max_prompts": DEFAULTS["evaluation.max_prompts"]} | found


def choices_of(spec: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """The schedules, module sets and metrics of texts that a spec names; without any, the metrics of a new form."""
    space = spec.get("search_space", {})
    sets = [name for name, modules in MODULE_SETS.items() if modules in space.get("target_modules", [])]
    metrics = [_said(one) for one in (spec.get("evaluation") or {}).get("metrics", [])]
    return list(space.get("schedule", ["constant"])), sets or ["all"], metrics or ["rouge_l"]


def _said(metric: Mapping[str, Any]) -> str:
    plain = next((name for name, document in _PLAIN.items() if document == metric), None)
    return plain or json.dumps({key: value for key, value in metric.items() if value is not None}, ensure_ascii=False)


def _put(spec: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for part in above:
        spec = spec.setdefault(part, {})
    spec[name] = value


def as_curl(spec: Mapping[str, Any], api_url: str) -> str:
    """The submission as a command; a quote within the JSON is written so that the shell keeps it."""
    body = json.dumps(spec, indent=2, ensure_ascii=False).replace("'", "'\\''")
    return (
        f'curl -sS --fail-with-body "{api_url}/v1/tasks" -H "Authorization: Bearer $MOTET_API_KEY" '
        f"-H 'Content-Type: application/json' -d '{body}'"
    )


def as_python(spec: Mapping[str, Any], api_url: str) -> str:
    lines = ["from motet import Client", "", f"client = Client({api_url!r})  # the key: MOTET_API_KEY"]
    return "\n".join([*lines, f"task = client.tasks.create({_literal(spec)})", "task = client.tasks.wait(task.id)"])


def _literal(value: Any, indent: int = 0) -> str:
    """A Python literal over several lines."""
    if isinstance(value, Mapping):
        inner = "".join(f"{' ' * (indent + 4)}{key!r}: {_literal(one, indent + 4)},\n" for key, one in value.items())
        return f"{{\n{inner}{' ' * indent}}}"
    return repr(value)
