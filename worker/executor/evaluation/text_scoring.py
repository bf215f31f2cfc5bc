"""Text evaluations that tasks ask for: of the base when a task begins, and of each adapter that is kept, before it is stored.

All that wait are answered in one batch, one pass between two training steps. Their texts are scored here, SLICE_SECONDS between
two steps, and reported. An adapter whose texts could not be generated is kept all the same, and the report says why it has no
scores.
"""

import logging
import time
from collections import deque
from collections.abc import Callable

from torch import Tensor

from worker.data.evaluation_prompts import prompts_of
from worker.executor.evaluation.asked_texts import AskedTexts
from worker.executor.job_run import JobRun
from worker.executor.placement_run import PlacementRun
from worker.generate.sequence import Completion
from worker.metrics.score_errors import MetricError
from worker.metrics.scoring import Scoring
from worker.replicas.replica_set import Replicas
from worker.replicas.text_generation import AdapterWeights, CannotGenerate, TextGeneration

log = logging.getLogger(__name__)

SLICE_SECONDS = 0.02  # of scoring between two training steps; a text more


class TextEvaluations:
    def __init__(self) -> None:
        self._waiting: list[AskedTexts] = []
        self._under_way: dict[int, AskedTexts] = {}
        self._scoring: deque[tuple[AskedTexts, list[Completion], Scoring]] = deque()
        self._generation: TextGeneration | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting or self._under_way or self._scoring)

    def __contains__(self, task: PlacementRun) -> bool:
        scored = (asked for asked, *_ in self._scoring)
        return any(asked.task is task for asked in (*self._waiting, *self._under_way.values(), *scored))

    def ask_base(self, replicas: Replicas, task: PlacementRun) -> None:
        """Evaluate the base for a new task that asks for it and does not know it yet."""
        if task.placement.spec.evaluation is not None and not task.placement.base_texts_evaluated:
            self._ask(replicas, task, None, None, lambda: None)

    def ask(self, replicas: Replicas, task: PlacementRun, run: JobRun, weights: Tensor, then: Callable[[], None]) -> None:
        """Evaluate the best adapter of a job that ends, float32 [rank, W], then call `then`; at once where its task asks for
        nothing."""
        if task.placement.spec.evaluation is None:
            then()
        else:
            self._ask(replicas, task, run, AdapterWeights(weights, run.job.config.plain_alpha), then)

    def drop(self, task: PlacementRun) -> None:
        """The task leaves: give up its evaluations."""
        self._drop(lambda asked: asked.task is task)

    def drop_base(self, task: PlacementRun) -> None:
        """The task was asked to leave: do without the base's texts, but not without those of jobs that end."""
        self._drop(lambda asked: asked.task is task and asked.run is None)

    def _drop(self, given_up: Callable[[AskedTexts], bool]) -> None:
        """The others of a batch that loses some begin anew."""
        self._waiting = [asked for asked in self._waiting if not given_up(asked)]
        self._scoring = deque(one for one in self._scoring if not given_up(one[0]))
        if any(map(given_up, self._under_way.values())):
            self._end_batch()
            self._waiting = [asked for asked in self._under_way.values() if not given_up(asked)] + self._waiting
            self._under_way = {}

    def advance(self, replicas: Replicas) -> None:
        """Score a slice of what was generated, and run one pass of the batch under way, or begin one with all that wait."""
        self._advance_scoring()
        if self._generation is None:
            self._begin(replicas)
        if self._generation is None:
            return
        began = time.monotonic()
        try:
            tokens = self._generation.advance()
        except CannotGenerate as error:
            self._fail(list(self._under_way.values()), str(error))
            return
        seconds = time.monotonic() - began
        for asked in self._under_way.values():
            share = 1 / len(self._under_way)
            asked.bill(seconds * share, round(tokens * share))
        if self._generation.done:
            results, done = self._generation.results(), self._under_way
            self._end_batch()
            self._under_way = {}
            for key, completions in results.items():
                assert isinstance(key, int)
                self._score(done[key], completions)

    def _ask(
        self,
        replicas: Replicas,
        task: PlacementRun,
        run: JobRun | None,
        weights: AdapterWeights | None,
        then: Callable[[], None],
    ) -> None:
        evaluation = task.placement.spec.evaluation
        assert evaluation is not None
        assert task.data is not None
        prompts = prompts_of(task.data.validation, evaluation.max_prompts, replicas.base.decode)
        self._waiting.append(AskedTexts(task, run, weights, then, prompts))

    def _begin(self, replicas: Replicas) -> None:
        if not self._waiting:
            return
        asked, self._waiting = self._waiting, []
        try:
            self._generation = TextGeneration(replicas, {place: one.request() for place, one in enumerate(asked)})
        except CannotGenerate as error:
            if len(asked) == 1:
                self._fail(asked, str(error))
            else:  # fewer adapters at once need fewer rows
                self._waiting = asked[len(asked) // 2 :]
                later, self._waiting = self._waiting, asked[: len(asked) // 2]
                self._begin(replicas)
                self._waiting += later
            return
        self._under_way = dict(enumerate(asked))

    def _end_batch(self) -> None:
        if self._generation is not None:
            self._generation.close()
        self._generation = None

    def _fail(self, asked: list[AskedTexts], why: str) -> None:
        self._end_batch()
        self._under_way = {}
        for one in asked:
            log.warning("placement %s: texts were not evaluated: %s", one.task.key, why)
            one.fail(why)

    def _score(self, asked: AskedTexts, completions: list[Completion]) -> None:
        try:
            scoring = Scoring(asked.evaluation.metrics, asked.pairs(completions))
        except MetricError as error:
            asked.fail(str(error))
        else:
            self._scoring.append((asked, completions, scoring))

    def _advance_scoring(self) -> None:
        if not self._scoring:
            return
        asked, completions, scoring = self._scoring[0]
        began = time.thread_time()
        scoring.advance(SLICE_SECONDS)
        asked.bill(time.thread_time() - began)
        if scoring.done:
            self._scoring.popleft()
            asked.report(completions, scoring)
