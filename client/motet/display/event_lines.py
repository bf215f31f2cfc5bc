"""A task's events as lines that a person reads. Values in, text out."""

from typing import Any

from contract.states import ExitReason
from contract.wording.exit_sentences import exit_sentence
from contract.wording.row_words import overlap_told
from contract.wording.step_words import goes_on_from, mean_of_steps
from motet.api.resources import Event

_POINTS = "curves"


def worth_telling(event: Event) -> bool:
    """Whether the event is more than new points of a curve."""
    return event.type != _POINTS


def line_of(event: Event) -> str:
    return f"{event.created_at:%Y-%m-%d %H:%M:%S} UTC {_said(event.type, event.data)}"


def _said(kind: str, data: dict[str, Any]) -> str:
    match kind:
        case "status":
            more = [str(data[name]) for name in ("reason", "detail", "error") if data.get(name)]
            chosen = data.get("selection")
            more += [str(chosen["verdict"])] if isinstance(chosen, dict) and chosen.get("verdict") else []
            return f"the task is {data.get('status')}" + (f": {', '.join(more)}" if more else "")
        case "base":
            return f"the base alone has validation loss {_loss(data.get('val_loss'))}{_scores(data)}{overlap_told(data)}"
        case "activations":
            return str(data.get("reason", kind))
        case "job":
            if data.get("milestone") is not None:
                said = _scores(data) or f", no scores: {data.get('evaluation_error')}"
                return f"job {data.get('job')} wrote texts at step {data.get('evaluated_step')}{said}"
            return f"job {data.get('job')} is {data.get('status')} at step {data.get('step')}" + _ending(data)
        case "adapter":
            loss = _loss(data.get("val_loss")) + _scores(data)
            taken = f"the {mean}" if (mean := _mean(data)) else f"step {data.get('step')}"
            return f"job {data.get('job')} stored {data.get('adapter_id')} of {taken}, validation loss {loss}"
        case "rewind":
            return f"job {data.get('job')} {goes_on_from(data.get('step', -1))}"
        case "curves":
            ends = (f"job {c.get('job')} {c.get('series')} {_loss(c.get('last'))} at {c.get('to_step')}" for c in _curves(data))
            return "; ".join(ends)
    return f"{kind} {data}"  # of a newer service


def _scores(data: dict[str, Any]) -> str:
    found = data.get("scores")
    return "".join(f", {name} {score:.3f}" for name, score in found.items()) if isinstance(found, dict) else ""


def _ending(data: dict[str, Any]) -> str:
    """Why a job has ended, and its best loss."""
    said = [_exit(data)] if data.get("exit_reason") else [str(data["error"])] if data.get("error") else []
    if data.get("best_val_loss") is not None:
        taken = f"of the {mean}" if (mean := _mean(data)) else f"at step {data.get('best_step')}"
        said.append(f"best validation loss {_loss(data['best_val_loss'])} {taken}")
    return f": {'; '.join(said)}" if said else ""


def _exit(data: dict[str, Any]) -> str:
    """The reason; of a newer service's reason, or of an event without evidence, its name alone."""
    reason, evidence = str(data["exit_reason"]), data.get("exit_evidence")
    if reason not in list(ExitReason) or not evidence:
        return reason
    return f"{reason}, {exit_sentence(ExitReason(reason), evidence)}"


def _mean(data: dict[str, Any]) -> str:
    """Which steps' mean the loss is of; empty where it is of one step."""
    found = data.get("averaged_steps")
    return mean_of_steps(found) if isinstance(found, list) else ""


def _curves(data: dict[str, Any]) -> list[dict[str, Any]]:
    found = data.get("curves")
    return found if isinstance(found, list) else []


def _loss(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "not finite"
