"""Requests for completions to an executor that trains, and what comes of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.messages.completion_messages import ChoicePiece, CompletionPiece, CompletionWork
from tests.worker.fleet import Fleet
from tests.worker.inside import Inside
from worker.executor.completions.request_channel import merged
from worker.pipe_messages import Detach

SPACE = {"learning_rate": [1e-2], "rank": [8], "batch_size": [4]}


CALM = {"policy": "none", "eval_every": 400}


LONG = {"epochs": 100, "max_steps": 900}


NEW = 12


def work(id: str, **more: Any) -> CompletionWork:
    """A greedy request of NEW tokens."""
    how = {"max_tokens": NEW, "temperature": 0.0, "top_p": 1.0, "seed": 7, "tenant_id": "someone"}
    prompt = {} if "messages" in more else {"prompts": ["one two three apples"]}
    return CompletionWork.model_validate({"request_id": id, **how, **prompt, **more})


def chat(id: str, text: str = "three pears plus two", **more: Any) -> CompletionWork:
    return work(id, messages=[{"role": "user", "content": text}], **more)


@dataclass
class Said:
    """An answer as the pieces add up to it."""

    pieces: list[CompletionPiece]

    @property
    def last(self) -> CompletionPiece:
        return self.pieces[-1]

    def choice(self, index: int = 0) -> ChoicePiece:
        whole = next(merged(self.pieces))
        return next(choice for choice in whole.choices if choice.index == index)

    @property
    def text(self) -> str:
        return self.choice().text


def answers(fleet: Fleet, folder: Path, placement: Any, works: list[CompletionWork], **settings: Any) -> dict[str, Said]:
    """What an executor says to these, while it trains this task, which is ended once all are answered."""
    fleet.asked += works
    executors: list[Any] = []

    def look() -> None:
        if all(work.request_id in fleet.pieces and over(fleet, work.request_id) for work in works):
            fleet.end(placement.placement_id)
            executors[0].handle_command(Detach(placement_id=placement.placement_id))

    fleet.on_pieces = look
    Inside(fleet, folder, **{"worker_completion_share": 0.5, **settings}).run(placement, prepare=executors.append)
    fleet.on_pieces = lambda: None
    return {work.request_id: Said(fleet.pieces[work.request_id]) for work in works}


def over(fleet: Fleet, id: str) -> bool:
    return bool(fleet.pieces[id]) and fleet.pieces[id][-1].over
