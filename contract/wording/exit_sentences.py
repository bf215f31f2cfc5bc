"""Why early exit stopped a job, as a sentence with its numbers. The command line and the dashboard share it."""

import sys
from collections.abc import Mapping
from typing import Any

from contract.states import ExitReason


def exit_sentence(reason: ExitReason, evidence: Mapping[str, Any]) -> str:
    """The sentence; where the evidence lacks the numbers (another version's, or not finite), its pattern alone."""
    match reason:
        case ExitReason.UNDERPERFORMING:
            said = _behind(evidence)
            if said is not None:
                return said + _why_validation(evidence)
        case ExitReason.OVERFITTING if holds_numbers(evidence, "gap", "tau_gap"):
            return f"validation loss {evidence['gap']:.0%} above training loss, {evidence['tau_gap']:.0%} is the limit"
        case ExitReason.DIVERGING if holds_numbers(evidence, "train_slope", "val_slope"):
            return f"both losses rise, {evidence['train_slope']:+.2f} and {evidence['val_slope']:+.2f} per evaluation"
    return str(evidence.get("pattern", "see its evidence"))


def _why_validation(evidence: Mapping[str, Any]) -> str:
    """Why validation decided although the task selects by a text metric; empty where it does not, or the metric decided."""
    if lacking := evidence.get("unscored_by"):
        return f"; no job's texts could be scored by {lacking}, so validation decided"
    if tied := evidence.get("tied_by"):
        return f"; {tied} does not tell it from the best, so validation decided"
    return ""


def _behind(evidence: Mapping[str, Any]) -> str | None:
    """Why a job was ranked out, by validation or by a text metric; None where the numbers are lacking."""
    metric = evidence.get("metric")
    named = "validation accuracy" if metric is None and "val_accuracy" in evidence else metric
    if holds_numbers(evidence, "difference_low", "difference_high", "rows" if metric is None else "prompts"):
        low, high = _two_digits(evidence["difference_low"]), _two_digits(evidence["difference_high"])
        over = f"{evidence['rows']} validation rows" if metric is None else f"{evidence['prompts']} prompts"
        measured = f" in {named}" if named is not None else ""
        return f"worse than the best at the end of warmup by {low} to {high}{measured} (95 %, {over})"
    own = "score" if metric is not None else "val_loss" if named is None else "val_accuracy"
    base, measured = f"base_{own}", f" by {named}" if named is not None else ""
    if holds_numbers(evidence, own, base):
        return f"no job beats the base after warmup{measured}: {evidence[own]:.4f}, the base alone {evidence[base]:.4f}"
    if not holds_numbers(evidence, "rank", "alive", "kept"):
        return f"{evidence['pattern']}, by {metric}" if metric is not None and "pattern" in evidence else None
    alive, kept = evidence["alive"], evidence["kept"]
    finished = evidence.get("finished", alive)  # fewer if no later finisher could have rescued the job
    of = f"{alive}" if finished == alive else f"the first {finished} of {alive}"
    goes_on = "only the best one goes on" if kept == 1 else f"at most {kept} go on"
    if metric is not None and evidence.get("score") is None:
        measured += " (its texts could not be scored)"
    return f"{_ordinal(evidence['rank'])} of {of} after warmup{measured}, {goes_on}"


def holds_numbers(evidence: Mapping[str, Any], *names: str) -> bool:
    """Whether all these are finite numbers: on the wire others are null, and a damaged row may hold anything."""
    return all(_is_finite(evidence.get(name)) for name in names)


def _is_finite(said: Any) -> bool:
    return isinstance(said, int | float) and not isinstance(said, bool) and abs(said) <= sys.float_info.max


def _two_digits(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
