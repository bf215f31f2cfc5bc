"""One evaluation of texts: what is asked, what it has cost so far, and the report that it ends with. Runs nothing."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from contract.evaluation.text_evaluation import SAMPLES, Evaluation, named
from contract.messages.report_messages import MOST_TEXT_BYTES, GeneratedText, TextSample, TextsEvaluated, text_bytes
from contract.row_scores import RowScores
from worker.adapters.weights_copies import WeightsCopy
from worker.data.evaluation_prompts import Prompt
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_run import PlacementRun
from worker.generate.sequence import Completion, Sampling
from worker.metrics.scoring import Scoring
from worker.replicas.text_generation import AdapterWeights, TextRequest

log = logging.getLogger(__name__)

PromptScores = Mapping[str, Sequence[float]]
SHOWN = 2000  # characters of a sample's prompt, reference and text


@dataclass(eq=False)
class AskedTexts:
    """run, weights: None for the base. step: that the weights are of. milestone: the step at which it was due; None: at the
    job's end, or of the base. then: what follows once it is reported, given each prompt's results by metric, and of a job that
    ends the owner of its weights from then on. tokens, seconds: billed so far."""

    task: PlacementRun
    run: JobRun | None
    weights: WeightsCopy | None
    then: Callable[[PromptScores], None]
    prompts: list[Prompt]
    step: int | None = None
    milestone: int | None = None
    notes: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    asked_at: float = field(default_factory=time.time)  # epoch seconds

    @property
    def evaluation(self) -> Evaluation:
        """What its task asks for."""
        asked = self.task.placement.spec.evaluation
        assert asked is not None
        return asked

    @property
    def at_boundary(self) -> bool:
        """Whether its job is ranked by it where its warmup ends."""
        return self.run is not None and self.milestone is not None and self.milestone in self.run.schedule.rungs[:1]

    def request(self) -> TextRequest:
        asked = self.evaluation
        sampling = [
            Sampling(asked.max_new_tokens, asked.temperature, asked.top_p, tuple(asked.stop), asked.seed + place)
            for place in range(len(self.prompts))
        ]
        adapter = partial(_read, self.weights, self.run) if self.weights is not None and self.run is not None else None
        return TextRequest([prompt.tokens for prompt in self.prompts], sampling, adapter)

    def let_go(self) -> None:
        """Give up its weights."""
        if self.weights is not None:
            self.weights.let_go()
            self.weights = None

    def pairs(self, completions: Sequence[Completion]) -> list[tuple[str, str]]:
        """Texts with their references."""
        return [(done.text, prompt.reference) for done, prompt in zip(completions, self.prompts, strict=True)]

    def bill(self, seconds: float, tokens: int = 0) -> None:
        self.task.count_evaluation(seconds, tokens)
        self.seconds, self.tokens = self.seconds + seconds, self.tokens + tokens

    def report(self, completions: Sequence[Completion], scoring: Scoring) -> None:
        """Report its scores, and go on."""
        samples = [
            TextSample(
                prompt=prompt.text[-SHOWN:],
                reference=prompt.reference[:SHOWN],
                text=done.text[:SHOWN],
                finish_reason=done.finish_reason,
                scores={name: each[place] for name, each in scoring.scores.items()},
            )
            for place, (prompt, done) in enumerate(list(zip(self.prompts, completions, strict=True))[:SAMPLES])
        ]
        self.notes += scoring.notes
        self._end(scoring.scores, samples, None, self._for_endpoints(completions))

    def _for_endpoints(self, completions: Sequence[Completion]) -> list[GeneratedText]:
        """All texts, where an endpoint of the tenant's grades them; none, with a note, where they are too large to report."""
        names = [named(metric) for metric in self.evaluation.endpoints]
        if not names:
            return []
        if self.at_boundary:  # most jobs that come there are about to be stopped
            self.notes += [f"metric '{name}' has no result: endpoints are not asked at the end of warmup" for name in names]
            return []
        texts = [
            GeneratedText(prompt=prompt.text, reference=prompt.reference, text=done.text, finish_reason=done.finish_reason)
            for prompt, done in zip(self.prompts, completions, strict=True)
        ]
        size = text_bytes(texts)
        if size <= MOST_TEXT_BYTES:
            return texts
        self.notes += [
            f"metric '{name}' has no result: the {len(texts)} texts with their prompts take {size} bytes, and at most "
            f"{MOST_TEXT_BYTES} are sent to an endpoint; lower max_prompts or max_new_tokens"
            for name in names
        ]
        return []

    def fail(self, why: str) -> None:
        """Report why there are no scores, and go on."""
        log.warning("placement %s: texts were not evaluated: %s", self.task.key, why)
        self._end({}, [], why[:2000])

    def _end(
        self,
        scores: Mapping[str, list[float]],
        samples: list[TextSample],
        error: str | None,
        texts: Sequence[GeneratedText] = (),
    ) -> None:
        if self.milestone is not None:
            self.let_go()
        job, told = self.run.index if self.run is not None else None, dict(scores) if self.milestone is None else {}
        if self.at_boundary:
            told = {name: each for name, each in scores.items() if name == self.task.placement.spec.cut_metric}
        self.task.phases.over("evaluate texts", self.asked_at, job, prompts=len(self.prompts), tokens=self.tokens)
        self.task.record(
            TextsEvaluated(
                job=job,
                step=self.step,
                milestone=self.milestone,
                prompts=len(self.prompts),
                scores={name: fmean(each) for name, each in scores.items()},
                prompt_scores=told,
                samples=samples,
                error=error,
                notes=self.notes,
                texts=list(texts),
                tokens=self.tokens,
                seconds=self.seconds,
            )
        )
        self.then(scores)


def cut_scores(task: PlacementRun, scores: PromptScores) -> RowScores | None:
    """Of each prompt by the metric that the task's cut goes by; None: there are none."""
    found = scores.get(task.placement.spec.cut_metric or "")
    return RowScores.of_results(found) if found else None


def _read(weights: WeightsCopy, run: JobRun) -> AdapterWeights:
    return AdapterWeights(weights.read(), run.job.config.plain_alpha)
