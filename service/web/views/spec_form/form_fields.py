"""The new-task form's fields: how each is read, called and filled at first. Field names are paths in the spec. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from contract.job_config import MODULES

Fields = Mapping[str, str]
MORE = "more"  # what no other field of the form holds: lines of path=value

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
ONE: dict[str, Read] = {
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
    "evaluation.file_id": _text,
    "evaluation.max_prompts": _whole,
    "evaluation.max_new_tokens": _whole,
    "evaluation.temperature": _number,
    "select_by": _text,
    "gpus": _whole,
    "max_gpus": _whole,
    "priority": _whole,
    "not_before": _text,
    "deadline": _text,
}
LISTS: dict[str, Read] = {
    "search_space.learning_rate": _number,
    "search_space.rank": _whole,
    "search_space.alpha_ratio": _number,
    "search_space.batch_size": _whole,
    "search_space.dropout": _number,
    "search_space.weight_decay": _number,
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
    "search_space.n": "Jobs to try",
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
    "evaluation.file_id": "Rows to write texts for",
    "evaluation.max_prompts": "Prompts",
    "evaluation.max_new_tokens": "Longest text",
    "evaluation.temperature": "Temperature",
    "evaluation.metrics": "Metrics",
    "select_by": "Choose the winner, and who goes on after warmup, by",
    "gpus": "GPUs",
    "max_gpus": "GPUs at most",
    "priority": "Priority",
    "not_before": "Not before",
    "deadline": "Deadline",
    "labels": "Labels",
    MORE: "More fields",
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


def field_name(path: str) -> str:
    """The form's field for a path in the spec: of a list's value, its list."""
    name = path.partition("[")[0]
    return "labels" if name.startswith("labels.") else name
