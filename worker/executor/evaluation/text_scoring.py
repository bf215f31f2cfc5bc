"""Text evaluations that tasks ask for: of the base when a task begins, of jobs at milestones, at their boundary where a text
metric ranks them there, and of each adapter that is kept, before it is stored.

All that wait are answered in one batch, pass by pass when it is given turns; a batch that finds no memory is split, and an
adapter that finds no arena rows waits until others give some back. Texts are scored here, SLICE_SECONDS a turn, and reported.
An adapter whose texts could not be generated is kept all the same, and the report says why it has no scores.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from worker.adapters.arena_growth import NoRows
from worker.adapters.job_checkpoint import UnreadableWeights
from worker.adapters.weights_copies import WeightsCopy
from worker.data.evaluation_prompts import prompt_notes, prompts_of
from worker.executor.attached_placements import AttachedPlacements
from worker.executor.evaluation.asked_texts import AskedTexts, PromptScores, cut_scores
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_run import PlacementRun
from worker.generate.sequence import Completion
from worker.metrics.score_errors import MetricError
from worker.metrics.scoring import Scoring
from worker.policy.job_record import BoundaryTextsScored, MilestonePassed
from worker.replicas.replica_set import Replicas
from worker.replicas.text_generation import CannotGenerate, Room, TextGeneration

SLICE_SECONDS = 0.02  # of scoring in a turn; a text more


class TextEvaluations:
    """`scored` is called once scores are known by which a task's jobs are ranked: of a job at its boundary, or of the base.
    make_room: told True, frees arena rows of adapters that nobody asks for completions."""

    def __init__(self, scored: Callable[[PlacementRun], None], make_room: Callable[[bool], None]) -> None:
        self._scored, self._make_room = scored, make_room
        self._waiting: list[AskedTexts] = []
        self._batches: deque[list[AskedTexts]] = deque()  # parts of one that was too large
        self._lacking: list[tuple[AskedTexts, int]] = []  # of adapters without rows, and how many others had
        self._under_way: dict[int, AskedTexts] = {}  # by key of the generation
        self._generation: TextGeneration | None = None
        self._generated: deque[tuple[AskedTexts, list[Completion]]] = deque()
        self._scoring: deque[tuple[AskedTexts, list[Completion], Scoring]] = deque()
        # of jobs whose milestones are not reported yet, with the weights of those that keep an adapter
        self._ends: list[tuple[JobRun, Callable[[], None], WeightsCopy | None]] = []

    def __bool__(self) -> bool:
        """Whether there is something to do now."""
        return any(True for _ in self._ready())

    def __contains__(self, task: PlacementRun) -> bool:
        return any(asked.task is task for asked in self._all())

    @property
    def tenants(self) -> frozenset[str]:
        """Whose evaluations can go on now."""
        return frozenset(asked.task.placement.tenant_id for asked in self._ready())

    def _all(self) -> Iterator[AskedTexts]:
        yield from chain(self._ready(), (asked for asked, _ in self._lacking))

    def _ready(self) -> Iterator[AskedTexts]:
        yield from chain(self._waiting, *self._batches, self._under_way.values())
        yield from chain((asked for asked, _ in self._generated), (asked for asked, *_ in self._scoring))

    def ask_at_start(self, replicas: Replicas, task: PlacementRun) -> None:
        """Evaluate the base for a new task that asks for it and does not know it yet, and the jobs that waited at their
        boundary for their scores when its last placement was lost or left."""
        if task.placement.spec.evaluation is not None and not task.placement.base_texts_evaluated:
            self._ask(replicas, task, None, None, partial(self._base_scored, task))
        for run in [run for run in task.runs if run.boundary_texts_due]:
            self._ask_at_boundary(replicas, task, run)

    def ask_due(self, replicas: Replicas, attached: AttachedPlacements, runs: Sequence[JobRun]) -> None:
        """Evaluate the jobs that have reached their boundary or a milestone by their last step, with their weights as they
        are, and those that found no rows, once there are fewer in use."""
        self._look_for_rows(replicas)
        for run in runs:
            if run.boundary_texts_due:
                self._ask_at_boundary(replicas, attached[run.key.placement], run)
        for run in runs:
            if (milestone := run.milestone_due) is not None and (weights := replicas.store.copied_apart(run.key)) is not None:
                run.apply(MilestonePassed(milestone))
                then = partial(self._settled, run)
                self._ask(replicas, attached[run.key.placement], run, weights, then, run.step, milestone)

    def _look_for_rows(self, replicas: Replicas) -> None:
        if self._lacking:
            self._make_room(True)
            lacking, used, self._lacking = self._lacking, replicas.first.trainer.arena.rows_used, []
            for asked, taken in lacking:
                if used < taken or asked.task.leaving:
                    self._waiting.append(asked)
                else:
                    self._lacking.append((asked, taken))

    def _ask_at_boundary(self, replicas: Replicas, task: PlacementRun, run: JobRun) -> None:
        if (weights := replicas.store.copied_apart(run.key)) is not None:
            then = partial(self._boundary_scored, task, run)
            self._ask(replicas, task, run, weights, then, run.step, run.schedule.rungs[0])

    def _base_scored(self, task: PlacementRun, scores: PromptScores) -> None:
        task.base_texts_scored(cut_scores(task, scores))
        self._scored(task)

    def _boundary_scored(self, task: PlacementRun, run: JobRun, scores: PromptScores) -> None:
        run.apply(BoundaryTextsScored(run.schedule.rungs[0], cut_scores(task, scores)))
        self._scored(task)

    def _settled(self, run: JobRun, scores: PromptScores) -> None:
        self._settle(run)

    def after(self, run: JobRun, then: Callable[[], None], weights: WeightsCopy | None = None) -> None:
        """Call `then`, which reports the job's end and has its weights from then on, once no texts of it are left to report."""
        self._ends.append((run, then, weights))
        self._settle(run)

    def _settle(self, run: JobRun) -> None:
        if not any(asked.run is run for asked in self._all()):
            due = [then for of, then, _ in self._ends if of is run]
            self._ends = [one for one in self._ends if one[0] is not run]
            for then in due:
                then()

    def ask(self, replicas: Replicas, task: PlacementRun, run: JobRun, weights: WeightsCopy, then: Callable[[], None]) -> None:
        """Evaluate the best adapter of a job that ends, then call `then`, which reports the end and has the weights from then
        on; at once where its task asks for nothing. They are let go where the task leaves before."""
        if task.placement.spec.evaluation is None:
            then()
        else:
            step = run.best.step if run.best is not None else None
            self._ask(replicas, task, run, weights, lambda scores: self.after(run, then, weights), step)

    def drop(self, task: PlacementRun) -> None:
        """The task leaves: give up its evaluations."""
        for weights in [weights for run, _, weights in self._ends if run.key.placement == task.key and weights is not None]:
            weights.let_go()
        self._ends = [one for one in self._ends if one[0].key.placement != task.key]
        self._drop(lambda asked: asked.task is task)

    def drop_job(self, run: JobRun) -> None:
        """The job failed: give up its evaluations."""
        self._drop(lambda asked: asked.run is run)

    def drop_unneeded(self, task: PlacementRun) -> None:
        """The task was asked to leave: do without what its next placement asks for again, the base's texts and those of jobs
        that go on, but not without those of jobs that end. There is none once no job is left to train."""
        if task.any_unfinished:
            self._drop(lambda asked: asked.task is task and (asked.run is None or asked.run.unfinished))

    def _drop(self, given_up: Callable[[AskedTexts], bool]) -> None:
        for asked in [asked for asked in self._all() if given_up(asked)]:
            asked.let_go()
        self._waiting = [asked for asked in self._waiting if not given_up(asked)]
        left = ([asked for asked in batch if not given_up(asked)] for batch in self._batches)
        self._batches = deque(batch for batch in left if batch)
        self._lacking = [one for one in self._lacking if not given_up(one[0])]
        self._generated = deque(one for one in self._generated if not given_up(one[0]))
        self._scoring = deque(one for one in self._scoring if not given_up(one[0]))
        for key in [key for key, asked in self._under_way.items() if given_up(asked)]:
            assert self._generation is not None
            self._generation.drop(key)
            del self._under_way[key]
        if not self._under_way:
            self._end_batch()

    @property
    def held_bytes(self) -> int:
        """Of the key-value cache of the batch under way."""
        return self._generation.held_bytes if self._generation is not None else 0

    def give_way(self) -> bool:
        """Training lacks memory: the batch under way begins anew later, with half as many texts at once. Whether it held
        any."""
        if self._generation is None or not self._generation.held_bytes:
            return False
        self._generation.give_way()
        return True

    def advance(self, replicas: Replicas, room: Room) -> None:
        """Score a slice of what was generated, and run one pass of the batch under way, or begin one with all that wait. room:
        for its cache."""
        self._advance_scoring()
        if self._generation is None:
            self._begin(replicas)
        if self._generation is None:
            return
        began = time.monotonic()
        try:
            read = self._generation.advance(room)
        except CannotGenerate as error:
            self._split(self._end_batch(), str(error))
            return
        self._bill(read, time.monotonic() - began)
        if self._generation.done:
            results = self._generation.results()
            self._generated.extend(zip(self._end_batch(), results.values(), strict=True))
            while self._generated:
                self._score(*self._generated.popleft())

    def _bill(self, read: Mapping[int, int], seconds: float) -> None:
        """A pass, by the tokens that each evaluation read in it. What was begun anew for want of memory is billed once."""
        fresh = {key: max(0, read.get(key, 0) - asked.tokens) for key, asked in self._under_way.items()}
        total = sum(fresh.values())
        for key, tokens in fresh.items():
            if tokens:
                self._under_way[key].bill(seconds * tokens / total, tokens)

    def _ask(
        self,
        replicas: Replicas,
        task: PlacementRun,
        run: JobRun | None,
        weights: WeightsCopy | None,
        then: Callable[[PromptScores], None],
        step: int | None = None,
        milestone: int | None = None,
    ) -> None:
        evaluation = task.placement.spec.evaluation
        assert evaluation is not None
        assert task.data is not None
        if task.text_prompts is None:
            rows = task.data.validation if task.prompts is None else task.prompts.rows
            task.text_prompts = prompts_of(rows, evaluation.max_prompts, replicas.base.decode)
        prompts = task.text_prompts
        asked = AskedTexts(task, run, weights, then, [prompt for prompt in prompts if prompt.text], step, milestone)
        asked.notes += task.prompts.notes if task.prompts is not None else []
        asked.notes += prompt_notes(prompts, task.placement.spec.training.max_seq_len, replicas.base.end_tokens)
        if asked.prompts:
            self._waiting.append(asked)
        else:
            asked.fail("none of the rows has a prompt to answer; give rows a prompt and a completion, or messages")

    def _begin(self, replicas: Replicas) -> None:
        if self._waiting:
            self._batches.append(self._waiting)
            self._waiting = []
        while self._generation is None and self._batches:
            batch = self._batches.popleft()
            try:
                self._generation = TextGeneration(replicas, {key: asked.request() for key, asked in enumerate(batch)})
            except NoRows as error:
                if len(batch) > 1 or replicas.first.empty or batch[0].task.leaving:
                    self._split(batch, str(error))
                else:
                    self._lacking.append((batch[0], replicas.first.trainer.arena.rows_used))
            except UnreadableWeights as error:
                self._split_unreadable(replicas, batch, str(error))
            else:
                self._under_way = dict(enumerate(batch))

    def _split_unreadable(self, replicas: Replicas, batch: list[AskedTexts], why: str) -> None:
        """As `_split`, until the one of which the weights cannot be read is alone: its task leaves."""
        if len(batch) > 1:
            self._split(batch, why)
        elif (run := batch[0].run) is not None:
            batch[0].let_go()
            replicas.store.lose(run.key, why)

    def _split(self, batch: list[AskedTexts], why: str) -> None:
        """Generate the halves of a batch apart: either all took too many rows together, or one that is too large is alone in
        the end."""
        if len(batch) > 1:
            half = len(batch) // 2
            self._batches.extendleft((batch[half:], batch[:half]))
        else:
            batch[0].fail(why)

    def _end_batch(self) -> list[AskedTexts]:
        """Free what the batch held. Returns whose it was."""
        if self._generation is not None:
            self._generation.close()
        batch = list(self._under_way.values())
        self._generation, self._under_way = None, {}
        return batch

    def _score(self, asked: AskedTexts, completions: list[Completion]) -> None:
        try:
            scoring = Scoring(asked.evaluation.computed, asked.pairs(completions), time.thread_time)
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
