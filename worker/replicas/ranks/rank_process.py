"""Rank 0's end of another rank: its process, started and ended here, and calls of it. Knows no replicas.

One call is one message, and its answer another; a thread that waits for an answer holds no lock of the interpreter. A rank that
ends, for whatever reason, ends the executor too (RankLost): each job then goes on from its last checkpoint.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import SecretStr

from worker.boot_clock import boot_now
from worker.policy.activations import Activations
from worker.replicas.ranks.call_turns import CallTurns
from worker.replicas.ranks.rank_link import Link, LinkClosed
from worker.replicas.ranks.rank_messages import Call, CallResult, GoOn, PassDone, Pause, Paused, ReplicaState, StepsDone
from worker.replicas.ranks.rank_start import HostRank, LocalRank, RankLost
from worker.replicas.ranks.shared_host_memory import SharedHostMemory

_LOOK_SECONDS = 1.0  # between looks at the leases while a rank says nothing
_MOST_SILENT_SECONDS = 600.0  # in a call without passes, after which a rank hangs; one that loads tells each few seconds

OnProgress = Callable[[], None]


class RankProcess:
    """`state`: of its replica, as of its last answer. `taken`: what it has told of the steps of the call under way, or of the
    last one."""

    def __init__(
        self,
        environment: Mapping[str, str],
        memory: SharedHostMemory,
        on_silence: Callable[[float], None],
        host: tuple[str, SecretStr] | None = None,
    ) -> None:
        """environment: besides this process's own, with its RANK. on_silence: called now and then while the rank owes an
        answer, with the seconds since its last word; may raise. host: address of its host's agent, and the secret; None: this
        host. Raises RankLost where it is not started."""
        self.number, self.state = int(environment["RANK"]), ReplicaState()
        self.taken: list[Any] = []
        self._memory, self._on_silence = memory, on_silence
        self._activations: dict[str, Activations] = {}  # tasks', shared with the loop
        self._told: dict[str, Activations] = {}  # the same, as the rank knows them
        self._turns = CallTurns()  # of the loop and of preparations
        self._answer: CallResult | None = None  # to the call under way, until it is taken
        self._on_progress: OnProgress | None = None  # of the call under way
        self._heard: float | None = None  # its last word of the call under way, or when it was first waited for
        self._process = LocalRank(environment, memory) if host is None else HostRank(*host, environment)
        self._link: Link = self._process.link

    @property
    def pid(self) -> int:
        """On its host."""
        return self._process.pid

    @property
    def name(self) -> str:
        """For messages."""
        return self._process.name

    def call(self, name: str, *args: object) -> Any:
        """The result of this call. Raises RankLost, and what the call raises."""
        return self.begin(name, *args)()

    def begin(self, name: str, *args: object, on_progress: OnProgress | None = None) -> Callable[[], Any]:
        """Begin a call; what is returned waits for its result, and must be called before any other call of this thread.
        on_progress: of a call with passes, which take as long as the service lets them; a rank that is silent in any other
        call is lost."""
        self._turns.acquire()
        try:
            kept = self._send(name, args, answers=True)
        except BaseException:
            self._turns.release()
            raise
        self._on_progress, self._heard, self.taken = on_progress, None, []

        def result() -> Any:
            try:
                return self._result()
            finally:
                kept.clear()  # until now the rank may have read them
                self._turns.release()

        return result

    def post(self, name: str, *args: object) -> None:
        """A call whose result nobody waits for, without tensors. The rank runs it before all later ones."""
        self._turns.acquire()
        try:
            self._send(name, args, answers=False)
        finally:
            self._turns.release()

    # ---- a call of several steps, between its beginning and its result -------------------------------------------------

    @property
    def awaited(self) -> bool:
        """Whether another thread waits to call it. From any thread."""
        return self._turns.awaited

    def answers_within(self, seconds: float) -> bool:
        """Whether it is through with the call, or will be within so many seconds. Raises RankLost, and what on_silence
        raises."""
        self._hear(seconds)
        return self._answer is not None

    def pause(self) -> None:
        """Ask it to wait between two steps. Raises RankLost."""
        self._say(Pause())

    def paused_after(self) -> int | None:
        """It was asked to wait, and does, after so many steps of the call; None: it is through with the call. Raises RankLost,
        and what on_silence raises."""
        while self._answer is None:
            if (paused := self._hear(_LOOK_SECONDS)) is not None:
                return paused.steps
        return None

    @property
    def answered(self) -> Any:
        """The result of the call that it is through with, before that is asked for."""
        assert self._answer is not None, "it is through with the call"
        return self._answer.result

    def go_on(self, steps: int) -> None:
        """It waits: have it take so many steps in all. Raises RankLost."""
        self._say(GoOn(steps))

    # ---- its tasks, memory, and end ------------------------------------------------------------------------------------

    def follow(self, placement: str, activations: Activations | None) -> None:
        """Keep these activations of a task alike here and there; None: no more."""
        if activations is None:
            self._activations.pop(placement, None)
            self._told.pop(placement, None)
        else:
            self._activations[placement], self._told[placement] = activations, replace(activations)

    def trim_memory(self) -> None:
        """Give back memory that calls were sent in."""
        self._memory.trim()

    def note_freed_rows(self) -> None:
        """A call that was posted frees rows: the limit that a lack of memory set is void."""
        if self.state.capacity is not None:
            self.state = replace(self.state, capacity=replace(self.state.capacity, most_rows=None))

    @property
    def ended(self) -> bool:
        """Whether the process has ended. From any thread."""
        return self._process.ended

    def kill(self) -> None:
        """End the process, whatever it is at. From any thread."""
        self._process.kill()

    def close(self) -> None:
        """End the process. It holds nothing that is not lost with it."""
        self._process.close()
        if self._process.owner is not None:
            self._memory.drop(self._process.owner)

    def _send(self, name: str, args: tuple[object, ...], answers: bool) -> list[Any]:
        changed = {key: replace(now) for key, now in self._activations.items() if now != self._told[key]}
        self._told |= changed
        owner = self._process.owner
        returned = self._memory.take_returned(owner) if owner is not None else []
        return self._say(Call(name, args, answers, returned, changed))

    def _say(self, message: object) -> list[Any]:
        try:
            return list(self._link.send(message))
        except LinkClosed as error:
            raise self._lost(error) from None

    def _result(self) -> Any:
        while self._answer is None:
            self._hear(_LOOK_SECONDS)
        answer, self._answer = self._answer, None
        if self._process.owner is not None:
            self._memory.drop(self._process.owner, answer.dropped)
        self._learn(answer.state)
        if isinstance(answer.result, Exception):
            raise answer.result
        return answer.result

    def _hear(self, seconds: float) -> Paused | None:
        """Take what it says, for so many seconds, or until it waits or has answered."""
        if self._heard is None:
            self._heard = boot_now()
        until = boot_now() + seconds
        try:
            while self._answer is None:
                if not self._link.waits(max(0.0, until - boot_now())):
                    self._look(boot_now() - self._heard)
                    return None
                self._heard = boot_now()
                match self._link.receive():
                    case PassDone():
                        if self._on_progress is not None:
                            self._on_progress()
                    case StepsDone() as told:
                        self.taken += told.steps
                    case Paused() as paused:
                        return paused
                    case CallResult() as answer:
                        self._answer = answer
        except LinkClosed as error:
            raise self._lost(error) from None
        return None

    def _look(self, silent: float) -> None:
        try:
            if self._on_progress is None and silent >= _MOST_SILENT_SECONDS:
                raise RankLost(f"rank {self.number} ({self.name}) hangs: it has said nothing for {silent:.0f} s")
            self._on_silence(silent)
        except BaseException:
            self._process.kill()  # its answer would be taken for another call's
            raise

    def _learn(self, state: ReplicaState) -> None:
        self.state = state
        for placement, now in state.activations.items():
            if placement in self._told and now != self._told[placement]:
                self._activations[placement].copy_from(now)
                self._told[placement] = now

    def _lost(self, error: LinkClosed) -> RankLost:
        return RankLost(f"rank {self.number} ({self.name}) {self._process.how()}: {error}")


def check_running(ranks: Iterable[RankProcess]) -> None:
    """Raise RankLost if any has ended."""
    ended = [rank.number for rank in ranks if rank.ended]
    if ended:
        raise RankLost(f"ranks {ended} have ended")
