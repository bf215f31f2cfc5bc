"""The scores of one evaluation's texts, computed in slices between training steps, within SCORING_SECONDS in all.

A text that cannot be scored, or not in time, scores 0. A metric that has MOST_COSTLY texts out of time, or uses up its equal
share of SCORING_SECONDS, is given up and has no scores, since means over different texts cannot be compared. `notes` say so.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from contract.evaluation.text_evaluation import ComputedMetric, named
from worker.metrics.score_errors import TooCostly, Unscorable
from worker.metrics.text_metrics import Clock, Score, scorer

SCORING_SECONDS = 10.0  # for all metrics of an evaluation
MOST_COSTLY = 5  # texts out of time until a metric is given up


class Scoring:
    """scores: by the metric's name, of each text in order, of metrics that are done."""

    def __init__(self, metrics: Sequence[ComputedMetric], pairs: Sequence[tuple[str, str]], clock: Clock) -> None:
        """pairs: texts with their references. clock: of the thread's time. Raises MetricError."""
        self._pairs, self._clock, self._share = pairs, clock, SCORING_SECONDS / max(1, len(metrics))
        self.scores: dict[str, list[float]] = {}
        self.notes: list[str] = []
        self.done = False
        self._steps = self._run({named(metric): scorer(metric, clock) for metric in metrics})

    def advance(self, seconds: float) -> None:
        """Score for so long, at least one text."""
        ends = self._clock() + seconds
        for _ in self._steps:
            if self._clock() >= ends:
                return
        self.done = True

    def _run(self, scores: dict[str, Score]) -> Iterator[None]:
        for name, score in scores.items():
            yield from self._metric(name, score)

    def _metric(self, name: str, score: Score) -> Iterator[None]:
        """Yields after each text."""
        found: list[float] = []
        failed = Counter[str]()
        used, costly = 0.0, 0
        for text, reference in self._pairs:
            if costly >= MOST_COSTLY or used > self._share:
                why = (
                    f"{costly} of the first {len(found)} took too long"
                    if used <= self._share
                    else f"time was up after {len(found)}"
                )
                self.notes.append(
                    f"metric '{name}' has no result: {why} of {len(self._pairs)} texts; take a simpler metric, or lower "
                    "max_prompts or max_new_tokens"
                )
                return
            began = self._clock()
            try:
                found.append(score(text, reference))
            except Unscorable as error:
                found.append(0.0)
                failed[str(error)] += 1
                costly += isinstance(error, TooCostly)
            used += self._clock() - began
            yield
        self.scores[name] = found
        for why, count in failed.items():
            self.notes.append(f"metric '{name}': {count} of {len(found)} texts could not be scored ({why}) and count as 0")
