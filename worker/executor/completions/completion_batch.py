"""Answers requests on the base that the executor holds: one continuous batch of all tenants' requests, a pass at a time.

Takes rows of the arena for the adapters and pages of a cache for the keys, and gives both up where training needs them. Knows
no share of the time: passes run when it is given turns.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from contract.messages.completion_messages import CompletionFailed, CompletionWork
from worker.adapters.arena_growth import NoRows
from worker.api_client import PlacementLink
from worker.data.node_cache import NodeCache
from worker.executor.background_worker import BackgroundWorker
from worker.executor.completions.held_adapters import HeldAdapters
from worker.executor.completions.request_channel import RequestChannel
from worker.executor.completions.request_preparation import CannotAnswer, PreparedRequest, RequestPreparation
from worker.executor.completions.request_run import RequestRun
from worker.executor.placement.placement_lease import Lease
from worker.generate.batch_scheduler import GenerationLimits
from worker.generate.generator import Generator
from worker.generate.sequence import Sequence
from worker.model.out_of_memory import is_out_of_memory
from worker.policy.generation_memory import FLOOR_TOKENS, PREFILL_TOKENS, pages_for
from worker.replicas.base_loader import DeviceBase
from worker.replicas.replica_set import Replicas
from worker.replicas.text_generation import Room, generation_shape, generator_of

log = logging.getLogger(__name__)

MOST_REQUESTS, MOST_SEQUENCES = 64, 64
CACHE_TOKENS = 16_384  # of the cache, unless one request takes more or training leaves less
IDLE_SECONDS = 30.0  # without a request, after which the cache is given up
_NO_MEMORY = CompletionFailed(code="no_memory", message="the executor has no memory for it now; try again shortly")


class Completions:
    """`hand_over` queues a callback for the training loop, from which all else is called."""

    def __init__(self, link: PlacementLink, cache: NodeCache, hand_over: Callable[[Callable[[], None]], None]) -> None:
        self._hand_over = hand_over
        self._channel = RequestChannel(
            link,
            lambda works: hand_over(partial(self._given, works)),
            lambda attempts: hand_over(partial(self._gone, attempts)),
            lambda: hand_over(self.drop),
        )
        self._preparation, self._worker = RequestPreparation(link, cache), BackgroundWorker("completions")
        self._replicas: Replicas | None = None
        self._preparing: dict[str, CompletionWork] = {}
        self._waiting: deque[RequestRun] = deque()
        self._running: dict[str, RequestRun] = {}
        self._requesters: dict[Sequence, RequestRun] = {}
        self._adapters = HeldAdapters()
        self._placement_id = ""  # under whose lease requests are answered
        self._earlier: frozenset[str] = frozenset()  # requests that were at hand when it changed: their adapters do not stay
        self._generator: Generator | None = None
        self._pages, self._held_bytes, self._used_at = 0, 0, 0.0
        self._begun_anew: set[str] = set()  # requests that gave way to training once
        self._most = MOST_REQUESTS  # at once; fewer once a pass found no memory, until none was asked for a while

    def __bool__(self) -> bool:
        """Whether a pass can run."""
        return bool(self._waiting or self._running)

    @property
    def tenants(self) -> frozenset[str]:
        """Whose requests can run."""
        return frozenset(run.prepared.work.tenant_id for run in (*self._waiting, *self._running.values()))

    @property
    def at_hand(self) -> frozenset[str]:
        return frozenset(self._preparing.keys() | {run.id for run in self._waiting} | self._running.keys())

    def close(self) -> None:
        """Ask for no more, and send no more."""
        self._channel.close()

    def serve(self, replicas: Replicas | None, lease: Lease | None) -> None:
        """Answer requests on these replicas from now on, under this lease; without one no more are taken, and those at hand go
        on under the last."""
        if replicas is not None and replicas.sharded:
            replicas = lease = None  # generation runs on one rank, which has no whole base
        if replicas is not self._replicas:
            self.drop()
            self._replicas, self._adapters, self._generator = replicas, HeldAdapters(), None
            self._most = MOST_REQUESTS
        if lease is not None and replicas is not None and lease.placement_id != self._placement_id:
            self._placement_id = lease.placement_id
            self._adapters.drop_idle(replicas)  # who is on the executor has changed: no tenant's adapter stays for others
            self._worker.submit(self._preparation.forget)
            self._earlier = self.at_hand
        held = self.at_hand
        room = max(0, MOST_REQUESTS - len(held)) if lease is not None and replicas is not None else 0
        self._channel.serve(lease or (self._channel.lease if held else None), room, held)
        if not held and time.monotonic() - self._used_at > IDLE_SECONDS:
            self._release_cache()
            self._most = MOST_REQUESTS  # only after a pause: under load it would find no memory again and again

    # ---- requests come and go ----------------------------------------------------------------------------------------

    def _given(self, works: Iterable[CompletionWork]) -> None:
        replicas, lease = self._replicas, self._channel.lease
        if replicas is None or lease is None:
            return
        for work in works:
            if work.request_id not in self.at_hand:
                self._preparing[work.request_id] = work
                self._worker.submit(partial(self._prepare, work, replicas.base, lease))

    def _prepare(self, work: CompletionWork, base: DeviceBase, lease: Lease) -> None:
        """Runs in a thread of its own."""
        try:
            prepared = self._preparation.prepare(work, base, lease)
        except CannotAnswer as error:
            self._hand_over(partial(self._ready, RequestRun(PreparedRequest(work, (), ())), error.failed))
        else:
            self._hand_over(partial(self._ready, RequestRun(prepared)))

    def _ready(self, run: RequestRun, failed: CompletionFailed | None = None) -> None:
        """It is prepared, or failed to be; nothing where it was given up, or given again, meanwhile."""
        if self._preparing.get(run.id) is not run.prepared.work:
            return
        del self._preparing[run.id]
        if failed is None:
            self._waiting.append(run)
        else:
            self._channel.send(run.failure(failed))

    def _gone(self, attempts: Mapping[str, int | None]) -> None:
        """Nobody waits for these attempts at requests any more (None: for none at all): bill what they took."""

        def over(work: CompletionWork) -> bool:
            return work.request_id in attempts and attempts[work.request_id] in (None, work.attempt)

        self._preparing = {id: work for id, work in self._preparing.items() if not over(work)}
        for run in [run for run in self._running.values() if over(run.prepared.work)]:
            self._leave(run)
            self._channel.send(run.ending())
        self._waiting = deque(run for run in self._waiting if not over(run.prepared.work))
        self._begun_anew &= self.at_hand

    def drop(self) -> None:
        """Forget all requests: the service has them asked elsewhere. Rows stay held for the next ones."""
        self._preparing.clear()
        self._waiting.clear()
        self._begun_anew.clear()
        for run in list(self._running.values()):
            self._leave(run)

    def give_way(self) -> bool:
        """Training lacks memory: requests that sent nothing begin anew later, once, others end, and all that they held is
        free. Whether there was anything."""
        replicas, had = self._replicas, bool(self._running or self._adapters or self._generator)
        if replicas is None or not had:
            return False
        for run in list(self._running.values()):
            anew = run.unsent and run.id not in self._begun_anew
            self._leave(run)
            if anew:
                self._begun_anew.add(run.id)
                self._waiting.appendleft(run)
            else:
                self._channel.send(run.failure(_NO_MEMORY))
        self._adapters.drop_idle(replicas)
        self._release_cache()
        return True

    def make_room(self, jobs_wait: bool) -> None:
        """Where jobs wait for rows, give up those of adapters that nobody asks at the moment."""
        if jobs_wait and self._replicas is not None:
            self._adapters.drop_idle(self._replicas)

    # ---- passes ------------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Of the key-value cache."""
        return self._held_bytes if self._generator is not None else 0

    def advance(self, replicas: Replicas, room: Room) -> None:
        """Begin requests that have room, and run one pass. room: what a cache may take."""
        assert replicas is self._replicas
        self._begin_waiting(replicas, room)
        if self._generator is None or not self._running:
            return
        began, lacking = time.monotonic(), False
        try:
            moved = self._generator.step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            lacking = True
        if lacking:  # outside the handler, whose traceback would keep the pass's tensors in memory
            self._out_of_memory()
        else:
            self._record(replicas.base, moved, time.monotonic() - began)

    def _record(self, base: DeviceBase, moved: Iterable[Sequence], seconds: float) -> None:
        read = Counter[RequestRun]()
        for one in moved:
            read[self._requesters[one]] += len(one.prompt) if len(one.generated) == 1 else 1
        for run, tokens in read.items():
            run.seconds += seconds * tokens / read.total()
            piece = run.piece(base.token_text, base.end_tokens)
            if piece is not None:
                self._channel.send(piece)
                if piece.over:
                    self._leave(run)

    def _begin_waiting(self, replicas: Replicas, room: Room) -> None:
        while self._waiting and len(self._running) < self._most:
            run = self._waiting[0]
            needed = sum(map(pages_for, run.most_tokens))
            if self._running and needed > self._pages:
                return  # once those that run have ended, it gets a cache of its size
            self._waiting.popleft()
            try:
                self._begin(replicas, run, needed, room)
            except NoRows as error:  # its advice fits where none has rows: others give theirs back
                lacking = CompletionFailed(code="no_memory", message=str(error)[:2000])
                self._channel.send(run.failure(lacking if replicas.first.empty else _NO_MEMORY))

    def _begin(self, replicas: Replicas, run: RequestRun, pages: int, room: Room) -> None:
        """Raises NoRows."""
        if self._generator is None or pages > self._pages:
            self._release_cache()
            if (failed := self._open_cache(replicas, pages, room)) is not None:
                self._channel.send(run.failure(failed))
                return
        assert self._generator is not None
        key, adapter = run.prepared.adapter_key, run.prepared.adapter
        slot = self._adapters.use(replicas, key, adapter) if key is not None and adapter is not None else None
        self._running[run.id] = run
        for one in run.begin(slot):
            self._requesters[one] = run
            self._generator.add(one)

    def _open_cache(self, replicas: Replicas, needed: int, room: Room) -> CompletionFailed | None:
        """A cache of the usual size or of what training leaves, which is a floor at least; else of just what is needed. Why
        there is no memory for that, if so. Jobs that join leave it be."""
        limits = GenerationLimits(MOST_SEQUENCES, PREFILL_TOKENS, replicas.base.max_positions)
        shape = generation_shape(replicas.base.trainer)
        left = max(shape.pages_within(room(MOST_SEQUENCES), MOST_SEQUENCES) - 1, pages_for(FLOOR_TOKENS))
        if needed > left:
            return CompletionFailed(
                code="no_memory",
                message=f"it takes {needed * shape.page_bytes >> 20} MiB of keys and values, and training leaves "
                f"{left * shape.page_bytes >> 20} MiB on the executor that has its base; shorten the prompt, lower "
                "max_tokens or n, or try again when less trains",
            )
        for pages in dict.fromkeys((min(left, max(needed, pages_for(CACHE_TOKENS))), needed)):
            try:
                self._generator, self._pages = generator_of(replicas.base, pages + 1, limits), pages
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                replicas.base.trainer.release_caches()
            else:
                self._held_bytes = shape.held_bytes(pages + 1, MOST_SEQUENCES)
                replicas.first.tracker.reserve(self._held_bytes)
                return None
        return _NO_MEMORY

    def _release_cache(self) -> None:
        if self._generator is not None:
            self._generator.release()
            if self._replicas is not None:
                self._replicas.first.tracker.reserve(0)
        self._generator, self._pages = None, 0

    def _leave(self, run: RequestRun) -> None:
        """Take a request out of the batch, ended or not."""
        del self._running[run.id]
        self._begun_anew.discard(run.id)
        for one in run.sequences:
            del self._requesters[one]
            if one.completion is None and self._generator is not None:
                self._generator.cancel(one)
        if run.prepared.adapter_key is not None and self._replicas is not None:
            self._adapters.release(self._replicas, run.prepared.adapter_key, keep=run.id not in self._earlier)
        self._used_at = time.monotonic()

    def _out_of_memory(self) -> None:
        """A pass found no memory: one request alone fails; several go on by half as many at once, those that can begin anew."""
        assert self._replicas is not None
        log.warning("no memory for a pass of %d requests", len(self._running))
        runs = list(self._running.values())
        self._most = max(1, len(runs) // 2)
        for run in reversed(runs):
            self._leave(run)
            if len(runs) > 1 and run.unsent:
                self._waiting.appendleft(run)
            else:
                self._channel.send(run.failure(_NO_MEMORY))
        self._release_cache()
        self._replicas.base.trainer.release_caches()
