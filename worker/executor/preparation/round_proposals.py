"""Prepares the next round of a tpe search once every warmup before it has ended: configurations, and their first weights.

Both take the host longer than a step, so a thread makes them while other tasks train.
"""

import math
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from contract.job_config import JobConfig
from contract.job_schedule import JobSchedule
from worker.executor.background_worker import BackgroundWorker
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_run import PlacementRun
from worker.executor.preparation.placement_preparation import Prepared
from worker.executor.rung_ranks import standings
from worker.policy.early_exit.ranking import by_scores

_PROPOSE = "worker.policy.tpe_proposals:propose"  # loaded for a task that needs it alone: see that module

Opened = Callable[[PlacementRun, list[JobRun], Prepared], None]


class RoundProposals:
    """`hand_over` queues a callback for the training loop; there `opened` gets the round's jobs, and what was prepared for
    them."""

    def __init__(self, hand_over: Callable[[Callable[[], None]], None], opened: Opened) -> None:
        self._hand_over, self._opened = hand_over, opened
        self._prepared: dict[str, Prepared] = {}  # of tasks with rounds to come
        self._asked = set[str]()
        self._worker = BackgroundWorker("proposals")

    def expect(self, task: PlacementRun, prepared: Prepared) -> None:
        """The task was opened."""
        if task.unproposed:
            self._prepared[task.key] = replace(prepared, drawn={})

    def drop(self, task: PlacementRun) -> None:
        """The task leaves."""
        self._prepared.pop(task.key, None)
        self._asked.discard(task.key)

    def ask_due(self, tasks: Iterable[PlacementRun]) -> None:
        """Propose the next round of each task whose last one is over. Where no configuration could be trained, those that are
        left fail too."""
        for task in tasks:
            if task.key not in self._prepared or task.key in self._asked or not _is_due(task):
                continue
            if task.failures.keys() == task.configs.keys():
                last = next((f"; the last of them: {why}" for why in reversed(task.failures.values()) if why), "")
                task.fail_unproposed(f"no configuration before this one could be trained{last}")
            else:
                self._asked.add(task.key)
                self._worker.submit(self._proposal(task, self._prepared[task.key]))

    def _proposal(self, task: PlacementRun, prepared: Prepared) -> Callable[[], None]:
        """For the thread, with all that the loop may change meanwhile."""
        spec, unproposed = task.placement.spec, sorted(task.unproposed)
        coming = next(indexes for indexes in spec.search_space.rounds if unproposed[0] in indexes)
        values = {place.job: place.value for place in by_scores(standings(task))}
        tried = {index: (config, values.get(index, _unranked(task, config))) for index, config in task.configs.items()}
        before = [one for index, one in tried.items() if index not in coming]
        known = {config for config, _ in tried.values()}

        def propose() -> None:
            # The round anew, as if nothing of it were known: an executor may have been lost when it had reported a part.
            propose_of = pkgutil.resolve_name(_PROPOSE)
            configs = dict(zip(coming, propose_of(spec, before, len(coming)), strict=True))
            configs = {index: config for index, config in configs.items() if index in unproposed}
            if not known.isdisjoint(configs.values()):  # of another version's proposals, say
                configs = dict(zip(configs, propose_of(spec, list(tried.values()), len(configs)), strict=True))
            self._hand_over(partial(self._open, task, configs, prepared.draw(configs)))

        return propose

    def _open(self, task: PlacementRun, configs: dict[int, JobConfig], prepared: Prepared) -> None:
        if task.key in self._asked and not task.leaving:
            self._asked.discard(task.key)
            self._opened(task, task.proposed(configs), prepared)


def _is_due(task: PlacementRun) -> bool:
    """Whether there is a round to come, and every warmup of those before has ended, or never will."""
    return bool(task.unproposed) and all(run.warmup_val_loss is not None or not run.unfinished for run in task.runs)


def _unranked(task: PlacementRun, config: JobConfig) -> float | None:
    """What a configuration without a loss at the boundary counts as. Batches so large that one holds all rows have none."""
    assert task.data is not None, "a round is proposed after warmups"
    return math.inf if JobSchedule.of(task.placement.spec, config, len(task.data.train)).has_boundary else None
