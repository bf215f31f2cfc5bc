"""Specs of text evaluations, and what executors reported of them."""

import itertools
from collections.abc import Callable
from typing import Any

from contract.messages.report_messages import TextsEvaluated

SPACE = {"learning_rate": [1e-2, 3e-3], "rank": [8], "batch_size": [4]}


CALM = {"policy": "none", "eval_every": 4}


ASKED = {"metrics": [{"type": "exact_match"}, {"type": "rouge_l", "name": "rouge"}], "max_prompts": 3, "max_new_tokens": 9}


PAIRS = [
    {
        "input": {"messages": [{"role": "user", "content": f"how many, {n}?"}]},
        "preferred_output": [{"role": "assistant", "content": f"{n} pears"}],
        "non_preferred_output": [{"role": "assistant", "content": "none at all"}],
    }
    for n in range(40)
]


def evaluated(reported) -> dict[int | None, TextsEvaluated]:
    return {event.job: event for event in reported.of(TextsEvaluated)}


def passes_take(seconds: float) -> Callable[[Any], None]:
    """For `prepare` of Inside.run: to the executor each pass of generation takes so long, whatever the machine."""

    def timed(executor: Any) -> None:
        executor._generation._clock = itertools.count(0.0, seconds).__next__

    return timed
