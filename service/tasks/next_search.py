"""What to try after a search: where its best configuration lies at the edge of what was tried, and what to look at where
nothing beat the base. Pure: configurations and numbers in, sentences out."""

from collections.abc import Sequence

from contract.search_space import MAX_BATCH_SIZE, MAX_RANK, JobConfig

_EARLY = 0.25  # a best step before this part of the steps is that of a job that overfits
_NAMES = {"learning_rate": "learning rate", "rank": "rank", "batch_size": "batch size", "beta": "beta"}
_UPWARD = ("rank",)  # of these only the largest is an edge: the smallest is preferred among equals
_MOST = {"rank": MAX_RANK, "batch_size": MAX_BATCH_SIZE}


def suggestions(configs: Sequence[JobConfig], best: JobConfig, best_step: int, total_steps: int | None) -> list[str]:
    """For a search with these configurations, the best of which had its lowest loss after `best_step` of its steps."""
    found = [said for name in _NAMES if (said := _at_edge(name, configs, best)) is not None]
    if total_steps is not None and best_step >= total_steps:
        found.append("the best job's loss was lowest at its last step: more epochs may lower it further")
    elif total_steps is not None and best_step < _EARLY * total_steps:
        found.append(
            f"the best job's loss was lowest after {best_step} of {total_steps} steps: it overfits; try fewer epochs, lower "
            "learning rates, or more rows"
        )
    return found


def of_no_winner(
    configs: Sequence[JobConfig], best: JobConfig, validation_rows: int | None, learned: bool, of_texts: bool = False
) -> list[str]:
    """Where nothing beat the base. learned: whether any job was better than the base at all. of_texts: by a text metric, on so
    many prompts."""
    found = ["check the data: does a row's prompt say what its completion must be?"]
    rates = sorted({config.learning_rate for config in configs})
    if best.learning_rate == rates[0]:
        found.append(f"try lower learning rates: {_said(rates[0])} is the smallest you gave; such as {_said(rates[0] / 10)}")
    if learned and validation_rows is not None and of_texts:
        found.append(
            f"ask more prompts: {validation_rows} are too few for a gain as small as the best one's; raise "
            "evaluation.max_prompts, or bring more rows"
        )
    elif learned and validation_rows is not None:
        found.append(
            f"bring more rows: {validation_rows} validation rows are too few for a gain as small as the best one's, or train "
            "for more epochs"
        )
    return found


def _at_edge(name: str, configs: Sequence[JobConfig], best: JobConfig) -> str | None:
    values = sorted({value for config in configs if (value := getattr(config, name)) is not None})
    own = getattr(best, name)
    if len(values) < 2 or own not in (values[0], values[-1]) or (own == values[0] and name in _UPWARD):
        return None
    largest = own == values[-1]
    step = values[-1] / values[-2] if largest and values[-2] else values[1] / values[0] if values[0] else 0.0
    if not step or own >= _MOST.get(name, float("inf")) or (name == "batch_size" and own == 1):
        return None
    other = own * step if largest else own / step
    if name in _MOST:
        other = max(1, min(_MOST[name], round(other)))
    edge, way = ("largest", "larger") if largest else ("smallest", "smaller")
    return f"the best {_NAMES[name]}, {_said(own)}, is the {edge} you gave: try {way} ones, such as {_said(other)}"


def _said(value: float) -> str:
    return f"{value:g}"
