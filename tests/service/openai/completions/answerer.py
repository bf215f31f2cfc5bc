"""The executor of an answer session as a script, and requests that wait for one."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select, update

from contract.compatibility.capabilities import understood
from contract.messages.placement_messages import AnswersOnly
from service.completions.models import CompletionRequest
from service.fleet.models import AnswerSession
from tests.service.fleet.scripted import ScriptedNode
from tests.service.live_server import until
from tests.service.openai.completions.completion_executor import piece, text

ABLE = {"capabilities": sorted(understood())}


@dataclass
class Answerer:
    """The executor of one session."""

    node: ScriptedNode
    given: AnswersOnly
    name: str = "executor-1"

    @property
    def id(self) -> str:
        return self.given.placement_id

    def pulse(self, **more: Any) -> dict[str, Any]:
        said = {"placement_id": self.id, "fence": self.given.fence, "phase": "training", "progress_age": 0.0}
        return said | more

    def call(self, path: str, said: dict[str, Any]) -> Any:
        return self.node.call("POST", f"placements/{self.id}/{path}", self.given.token, said)

    def wants(self, room: int = 8, held: tuple[str, ...] = ()) -> Any:
        said = {"fence": self.given.fence, "executor": self.name, "room": room, "held": list(held), "wait": 0}
        return self.call("completions", said)

    def sends(self, *pieces: dict[str, Any]) -> Any:
        return self.call("completion-pieces", {"fence": self.given.fence, "executor": self.name, "pieces": list(pieces)})

    def next(self, count: int = 1) -> list[dict[str, Any]]:
        """The next requests, of which so many must come: a claim passes over those that something has locked."""
        found: list[dict[str, Any]] = []
        until(lambda: found.extend(self.wants().json()["requests"]) or len(found) >= count)
        return found

    def answer(self, said: str, count: int = 1) -> int:
        """Answer the requests that wait, of which there must be so many; how many."""
        works = self.next(count)
        for work in works:
            sent = self.sends(piece(work, 1, text(said, finish_reason="stop"), over=True))
            assert sent.status_code == 200, sent.text
        return len(works)

    def dies(self, detail: str = "killed") -> None:
        """Its daemon tells the service that the executor ended."""
        lost = {"reason": "executor_lost", "fences": {self.id: self.given.fence}, "detail": detail}
        assert self.node.call("POST", f"nodes/{self.node.id}/lost", self.node.credential, lost).is_success


def waiting(database, count: int = 1) -> None:
    """So many requests have come, and wait."""

    def came() -> bool:
        with database.begin() as session:
            open_ = select(func.count()).select_from(CompletionRequest).where(CompletionRequest.state == "waiting")
            return session.scalars(open_).one() >= count

    until(came)


def held(node: ScriptedNode) -> Answerer:
    """The one session that the node should hold."""
    (session,) = node.desired().sessions
    return Answerer(node, session)


def live(database) -> list[str]:
    """Ids of the sessions that have not ended."""
    with database.begin() as session:
        return list(session.scalars(select(AnswerSession.id).where(AnswerSession.ended_at.is_(None))))


def lapse(database) -> None:
    """The claims of all executors are over."""
    with database.begin() as session:
        session.execute(update(CompletionRequest).values(claimed_until=func.now() - timedelta(seconds=1)))
