"""Text evaluations that tasks ask for: of the base when a task begins, and of each adapter that is kept, before it is stored.

All that wait are answered in one batch, one pass between two training steps. Scores are computed here, and reported. An adapter
whose texts could not be generated is kept all the same, and the report says why it has no scores.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from torch import Tensor

from contract.messages.report_messages import TextSample, TextsEvaluated
from contract.text_evaluation import SAMPLES
from worker.data.evaluation_prompts import Prompt, prompts_of
from worker.executor.job_run import JobRun
from worker.executor.placement_run import PlacementRun
from worker.generate.sequence import Completion, Sampling
from worker.metrics.text_metrics import MetricError, prompt_scores, scorers
from worker.replicas.replica_set import Replicas
from worker.replicas.text_generation import AdapterWeights, CannotGenerate, TextGeneration, TextRequest

log = logging.getLogger(__name__)

SHOWN = 2000  # characters of a sample's prompt, reference and text


@dataclass(eq=False)
class _Asked:
    """One evaluation. run: None for the base. then: what follows once it is reported."""

    task: PlacementRun
    run: JobRun | None
    weights: AdapterWeights | None
    then: Callable[[], None]
    prompts: list[Prompt]
    tokens: int = 0
    seconds: float = 0.0


class TextEvaluations:
    def __init__(self) -> None:
        self._waiting: list[_Asked] = []
        self._under_way: dict[int, _Asked] = {}
        self._generation: TextGeneration | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting or self._under_way)

    def __contains__(self, task: PlacementRun) -> bool:
        return any(asked.task is task for asked in (*self._waiting, *self._under_way.values()))

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

    def _drop(self, given_up: Callable[[_Asked], bool]) -> None:
        """The others of a batch that loses some begin anew."""
        self._waiting = [asked for asked in self._waiting if not given_up(asked)]
        if any(map(given_up, self._under_way.values())):
            self._end_batch()
            self._waiting = [asked for asked in self._under_way.values() if not given_up(asked)] + self._waiting
            self._under_way = {}

    def advance(self, replicas: Replicas) -> None:
        """Run one pass of the batch under way, or begin the next one with all that wait."""
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
            asked.task.evaluated(seconds * share, round(tokens * share))
            asked.seconds, asked.tokens = asked.seconds + seconds * share, asked.tokens + round(tokens * share)
        if self._generation.done:
            results, done = self._generation.results(), self._under_way
            self._end_batch()
            self._under_way = {}
            for key, completions in results.items():
                assert isinstance(key, int)
                self._report(done[key], completions)

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
        self._waiting.append(_Asked(task, run, weights, then, prompts))

    def _begin(self, replicas: Replicas) -> None:
        if not self._waiting:
            return
        asked, self._waiting = self._waiting, []
        try:
            self._generation = TextGeneration(replicas, {place: _request(one) for place, one in enumerate(asked)})
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

    def _fail(self, asked: list[_Asked], why: str) -> None:
        self._end_batch()
        self._under_way = {}
        for one in asked:
            log.warning("placement %s: texts were not evaluated: %s", one.task.key, why)
            one.task.record(_event(one, {}, [], why))
            one.then()

    def _report(self, asked: _Asked, completions: list[Completion]) -> None:
        evaluation = asked.task.placement.spec.evaluation
        assert evaluation is not None
        pairs = [(done.text, prompt.reference) for done, prompt in zip(completions, asked.prompts, strict=True)]
        try:
            scores = prompt_scores(scorers(evaluation.metrics), pairs)
        except MetricError as error:
            self._fail([asked], str(error))
            return
        samples = [
            TextSample(
                prompt=prompt.text[-SHOWN:],
                reference=prompt.reference[:SHOWN],
                text=done.text[:SHOWN],
                finish_reason=done.finish_reason,
                scores={name: each[place] for name, each in scores.items()},
            )
            for place, (prompt, done) in enumerate(list(zip(asked.prompts, completions, strict=True))[:SAMPLES])
        ]
        asked.task.record(_event(asked, scores, samples, None))
        asked.then()


def _request(asked: _Asked) -> TextRequest:
    evaluation = asked.task.placement.spec.evaluation
    assert evaluation is not None
    sampling = [
        Sampling(
            evaluation.max_new_tokens, evaluation.temperature, evaluation.top_p, tuple(evaluation.stop), evaluation.seed + place
        )
        for place in range(len(asked.prompts))
    ]
    return TextRequest([prompt.tokens for prompt in asked.prompts], sampling, asked.weights)


def _event(asked: _Asked, scores: Mapping[str, list[float]], samples: list[TextSample], error: str | None) -> TextsEvaluated:
    """scores: by metric, of each prompt."""
    step = asked.run.best.step if asked.run is not None and asked.run.best is not None else None
    return TextsEvaluated(
        job=asked.run.index if asked.run is not None else None,
        step=step,
        prompts=len(asked.prompts),
        scores={name: fmean(each) for name, each in scores.items()},
        prompt_scores=dict(scores),
        samples=samples,
        error=error[:2000] if error is not None else None,
        tokens=asked.tokens,
        seconds=asked.seconds,
    )
