"""Why early exit stopped a job, as a sentence with its numbers. The command line and the dashboard share it."""

import math
from collections.abc import Mapping
from typing import Any

from contract.states import ExitReason


def exit_sentence(reason: ExitReason, evidence: Mapping[str, Any]) -> str:
    """The sentence; where the evidence lacks the numbers (another version's, or not finite), its pattern alone."""
    match reason:
        case ExitReason.UNDERPERFORMING if _holds(evidence, "difference_low", "difference_high", "rows"):
            low, high = evidence["difference_low"], evidence["difference_high"]
            by = f"by {_two_digits(low)} to {_two_digits(high)}"
            return f"worse than the best at the end of warmup {by} (95 %, {evidence['rows']} validation rows)"
        case ExitReason.UNDERPERFORMING if _holds(evidence, "base_val_loss", "val_loss"):
            own, base = evidence["val_loss"], evidence["base_val_loss"]
            return f"no job beats the base after warmup: {own:.4f}, the base alone {base:.4f}"
        case ExitReason.UNDERPERFORMING if _holds(evidence, "rank", "alive", "kept"):
            alive, kept = evidence["alive"], evidence["kept"]
            finished = evidence.get("finished", alive)  # fewer if no later finisher could have rescued the job
            of = f"{alive}" if finished == alive else f"the first {finished} of {alive}"
            goes_on = "only the best one goes on" if kept == 1 else f"at most {kept} go on"
            return f"{_ordinal(evidence['rank'])} of {of} after warmup, {goes_on}"
        case ExitReason.OVERFITTING if _holds(evidence, "gap", "tau_gap"):
            return f"validation loss {evidence['gap']:.0%} above training loss, {evidence['tau_gap']:.0%} is the limit"
        case ExitReason.DIVERGING if _holds(evidence, "train_slope", "val_slope"):
            return f"both losses rise, {evidence['train_slope']:+.2f} and {evidence['val_slope']:+.2f} per evaluation"
    return str(evidence.get("pattern", "see its evidence"))


def _holds(evidence: Mapping[str, Any], *names: str) -> bool:
    """Whether all these are finite numbers: others are null on the wire."""
    return all(isinstance(evidence.get(name), int | float) and math.isfinite(evidence[name]) for name in names)


def _two_digits(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
