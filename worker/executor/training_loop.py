"""The executor: one frozen base, and jobs of any task that train on it together.

    while jobs: admit -> pack -> step -> record -> evaluate -> rank -> release

One step is an optimizer step of every job that holds arena rows, on all replicas in parallel. Slow work runs in background
threads, which queue callbacks for the loop. A job ends early for a training loss that is not finite (`_step`), by its own curve
(`_apply_evaluation`), or by its rank at a rung (`_apply_rank_decisions`).
"""

import contextlib
import math
import queue
from collections.abc import Sequence
from functools import partial

from contract.messages.placement_messages import Leased
from worker.api_client import PlacementLink
from worker.boot_clock import boot_now
from worker.data.executor_folders import ExecutorFolders
from worker.executor.artifact_uploader import ArtifactUploader
from worker.executor.attached_placements import AttachedPlacements, Send
from worker.executor.checkpoint_policy import CheckpointPolicy
from worker.executor.completions.completion_batch import Completions
from worker.executor.evaluation.baseline_evaluation import Baselines
from worker.executor.evaluation.job_endings import JobEndings
from worker.executor.evaluation.job_evaluations import JobEvaluations
from worker.executor.evaluation.text_scoring import TextEvaluations
from worker.executor.generation.generation_turns import GenerationTurns
from worker.executor.inbox import Inbox
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_lease import Lease
from worker.executor.placement.placement_run import PlacementRun
from worker.executor.preparation.placement_preparation import Prepared
from worker.executor.preparation.round_proposals import RoundProposals
from worker.executor.rung_ranks import at_boundary, certain_ranks
from worker.executor.step_counter import StepCounter
from worker.executor.step_scheduler import StepScheduler
from worker.pipe_messages import Attach, Detach, Renew, Serve, Stop
from worker.policy.adapter_memory_model import Capacity
from worker.policy.early_exit.policy_interface import non_finite_verdict
from worker.policy.job_record import JobKey, RungReached, Stage
from worker.replicas.device_replica import Unrunnable
from worker.replicas.ranks.rank_group import LoadedBase
from worker.replicas.replica_set import Replicas
from worker.replicas.validation_pass import ValidationResult
from worker.settings import Settings

_IDLE_SECONDS = 1.0  # between looks at the leases while nothing trains


class Executor:
    """`send` sends to the daemon. Any thread may call `handle_command`; everything else happens in `run`."""

    def __init__(self, settings: Settings, link: PlacementLink, send: Send) -> None:
        self._inbox = Inbox()
        self._folders = ExecutorFolders(settings.scratch, settings.worker_cache_bytes)
        self._folders.sweep()
        self._attached = AttachedPlacements(
            settings, link, self._folders, self._inbox.put, send, self._opened, self._hold, self._left
        )
        self._uploader = ArtifactUploader(link, self._folders, self._inbox, self._attached.leave, self._attached.on_lost)
        self._checkpoint_policy = CheckpointPolicy(self._uploader, self._folders.cache, settings.worker_checkpoint_seconds)
        self._baselines = Baselines(self._folders.cache, self._attached.progress)
        self._scheduler = StepScheduler()
        self._evaluations = JobEvaluations(self._attached, self._attached.progress, self._scheduler.record_evaluation)
        self._completions = Completions(link, self._folders.cache, self._inbox.put)
        self._texts = TextEvaluations(lambda task: self._to_rank.update({task.key: task}), self._completions.make_room)
        self._endings = JobEndings(self._attached, self._evaluations, self._texts, self._uploader, self._free_job)
        self._rounds = RoundProposals(self._inbox.put, self._add_jobs)
        self._generation = GenerationTurns(settings.worker_completion_share, self._texts, self._completions)
        self._counter = StepCounter(self._attached, self._scheduler, self._generation)
        self._replicas: Replicas | None = None  # of the base that is loaded
        self._stopping = self._recheck_admission = self._stuck = False  # jobs may find room; found none though nobody trains
        self._to_rank: dict[str, PlacementRun] = {}  # tasks whose standings at a rung have changed

    def run(self, ending: contextlib.AbstractContextManager[None] | None = None) -> None:
        """The training loop, until a Stop or an error, such as a replica process's end. `ending` ends before it is closed."""
        with contextlib.closing(self._attached), contextlib.closing(self._completions), ending or contextlib.nullcontext():
            while self._run_inbox():
                if self._replicas is not None:
                    self._iterate(self._replicas)

    def _iterate(self, replicas: Replicas) -> None:
        if self._baselines:
            self._recheck_admission |= self._baselines.lack_rows  # those who wait behind one may go on once it has its rows
            self._advance_baseline(replicas)
        if self._recheck_admission or self._stuck:
            self._admit(replicas)
        self._generation.advance(replicas, self._active())
        if runs := self._stepping():
            stepped = self._step(replicas, runs)
            self._evaluate_due(replicas, [run for run in self._stepping() if run.key in stepped and run.evaluation_due])
        self._endings.advance(replicas, alone=not self._stepping())
        self._texts.ask_due(replicas, self._attached, self._stepping())
        self._apply_rank_decisions(replicas)
        self._rounds.ask_due(self._attached.training)
        self._detach_finished()
        self._checkpoint_policy.take(self._attached.open, replicas.store)

    def handle_command(self, command: Attach | Serve | Renew | Detach | Stop) -> None:
        match command:
            case Attach() | Serve():
                self._inbox.put(partial(self._attach, command.placement, self._attached.lease(command), command.sent_at))
            case Renew():
                self._attached.renew(command)
            case Detach():
                self._inbox.put(partial(self._attached.detach, command))
            case Stop():
                self._inbox.put(partial(self._stop, command.seconds))

    def _run_inbox(self) -> bool:
        """Run queued callbacks, and block for one while nothing trains. False when the loop is to end."""
        others = self._baselines or self._texts or self._completions
        busy = self._active() or self._endings or self._recheck_admission or self._to_rank or others
        with contextlib.suppress(queue.Empty):
            self._inbox.get(timeout=0.0 if busy else _IDLE_SECONDS)()
            while True:
                self._inbox.get()()
        if not self._active():  # else its steps report; a turn that scores texts or answers is progress too
            self._attached.progress()
        self._attached.expire()
        self._completions.serve(self._replicas, self._attached.serving_lease)
        return not self._stopping

    def _attach(self, placement: Leased, lease: Lease, sent_at: float) -> None:
        if self._attached.empty and self._replicas is not None and self._replicas.ref.identity != placement.base.identity:
            self._replicas = None  # another base needs the memory
            self._completions.serve(None, None)
        self._attached.attach(placement, lease, sent_at)

    def _opened(self, task: PlacementRun, prepared: Prepared) -> None:
        """A placement is prepared: make its jobs schedulable."""
        replicas = self._hold(prepared.loaded, prepared.capacities)
        replicas.add_placement(task.key, prepared.needs(task.placement.spec.evaluation))
        self._add_jobs(task, task.runs, prepared)
        self._rounds.expect(task, prepared)
        self._texts.ask_at_start(replicas, task)
        self._checkpoint_policy.expect(task, replicas.base.trainer.arena.layout.state_bytes, replicas.host_bytes)

    def _add_jobs(self, task: PlacementRun, runs: list[JobRun], prepared: Prepared) -> None:
        """Make jobs of an open placement schedulable: those that it begins with, and later those of each round."""
        replicas = self._hold(prepared.loaded, prepared.capacities)
        replicas.add_jobs([run.job for run in runs], prepared.start, prepared.files, prepared.drawn)
        self._fail_unrunnable(replicas, replicas.rejected(run.demand for run in runs))
        if task.lacks_baseline and task not in self._baselines:
            self._baselines.begin(replicas, task, prepared)
        self._recheck_admission, self._to_rank[task.key] = True, task

    def _hold(self, loaded: LoadedBase, capacities: Sequence[Capacity]) -> Replicas:
        """The replicas of this base: those that are there, or new ones."""
        if self._replicas is None or self._replicas.loaded is not loaded:
            parts = (loaded, capacities, self._folders, self._generation.give_way, self._attached.on_lost)
            self._replicas = Replicas(*parts, lambda: self._counter.decides or self._something_waits(), self._counter.count)
        return self._replicas

    def _something_waits(self) -> bool:
        """Whether the replicas are to meet: for a command, for a lease that has run out, or for a checkpoint."""
        return self._inbox.waits or self._attached.expires or self._checkpoint_policy.awaited(self._attached.open)

    def _advance_baseline(self, replicas: Replicas) -> None:
        """Run one pass of a new task's baseline, between the steps of the others."""
        task, unrunnable = self._baselines.advance()
        self._fail_unrunnable(replicas, unrunnable)
        if task not in self._baselines:
            self._recheck_admission, self._to_rank[task.key] = True, task  # under dpo its jobs may step now
            if not task.any_unfinished and task not in self._endings:
                replicas.remove_placement(task.key)

    def _left(self, task: PlacementRun) -> None:
        """A placement has left: free what its jobs hold."""
        for part in (self._baselines, self._texts, self._rounds, self._endings):
            part.drop(task)
        if self._replicas is not None:
            for run in task.runs:
                self._free_job(self._replicas, task, run)
            self._replicas.remove_placement(task.key)
        self._to_rank.pop(task.key, None)
        self._recheck_admission = True

    def _active(self) -> list[JobRun]:
        """The jobs that hold arena rows to train in."""
        runs = [run for task in self._attached.training for run in task.runs]
        return [run for run in runs if self._replicas is not None and self._replicas.store.trains_on(run.key) is not None]

    def _stepping(self) -> list[JobRun]:
        """Those that take steps: others are decided, and wait for their weights to be read."""
        return [run for run in self._active() if run.unfinished]

    def _admit(self, replicas: Replicas) -> None:
        """Give arena rows to the jobs that the policy admits, and balance the replicas."""
        self._recheck_admission = False
        runs = (run for task in self._attached.training for run in task.runs if run.trainable)
        waiting = {run.key: run for run in runs if replicas.store.trains_on(run.key) is None}
        self._completions.make_room(bool(waiting))
        active, demands = ([run.demand for run in runs] for runs in (self._active(), waiting.values()))
        given, unrunnable = replicas.admit(active, demands, start=1 if self._baselines.lack_rows else 0)  # theirs is 0
        for key in given:
            self._attached[key.placement].started(waiting[key])
        self._stuck = bool(waiting) and not self._active()  # what they lack, generation has, or a task that leaves
        if (unrunnable or self._stuck) and self._generation.give_way():
            return self._admit(replicas)  # at once, before generation takes it again
        self._fail_unrunnable(replicas, unrunnable)
        if not self._endings:  # else once they have ended: those do not move
            self._recheck_admission |= replicas.rebalance([run.demand for run in self._active()])

    def _step(self, replicas: Replicas, runs: list[JobRun]) -> set[JobKey]:
        """Step the jobs of the tasks whose turn it is; those that cannot be stepped fail. Returns the jobs that stepped."""
        placements = {task.key: task.placement for task in self._attached.training}
        others = bool(self._baselines or self._texts or self._completions or self._endings)
        runs, slices, count = self._scheduler.choose(replicas, placements, runs, others)
        self._counter.begin()
        steps, unrunnable = replicas.step([(run.job, run.step) for run in runs], slices, count, self._attached.progress)
        self._counter.count(steps)
        self._recheck_admission |= self._counter.grew
        self._fail_unrunnable(replicas, unrunnable)
        for key, loss in self._counter.losses.items():
            if (verdict := non_finite_verdict("train_loss", loss)) is not None:
                self._endings.begin(replicas, self._attached[key.placement][key.job], verdict)
        return set(self._counter.losses)

    def _fail_unrunnable(self, replicas: Replicas, unrunnable: Unrunnable) -> None:
        """Fail these jobs: they cannot be stepped. Before that, tasks report how they hold activations now."""
        for task in self._attached.open:
            task.report_activations()
        for key, why in unrunnable.items():
            task = self._attached[key.placement]
            self._free_job(replicas, task, task[key.job])
            self._texts.drop_job(task[key.job])
            self._endings.drop_job(task[key.job])
            task.failed(task[key.job], why)

    def _free_job(self, replicas: Replicas, task: PlacementRun, run: JobRun) -> None:
        """It has ended, or leaves: others may take what it holds."""
        replicas.store.remove(run.key)
        self._checkpoint_policy.forget(task, run)
        self._recheck_admission, self._to_rank[task.key] = True, task

    def _evaluate_due(self, replicas: Replicas, due: list[JobRun]) -> None:
        """Evaluate the jobs that are due, and apply the early-exit policy to each."""
        found, unrunnable = self._evaluations.after_step(replicas, due)
        self._fail_unrunnable(replicas, unrunnable)
        for key, result in found.items():
            task = self._attached[key.placement]
            self._apply_evaluation(replicas, task, task[key.job], result)

    def _apply_evaluation(self, replicas: Replicas, task: PlacementRun, run: JobRun, result: ValidationResult) -> None:
        trend = result.part or result  # a full evaluation has the trend's result as its part
        loss = trend.loss if (finite := math.isfinite(result.loss)) else result.loss
        task.validated(run, trend)
        change, verdict = run.ask_policy(task.policy, loss)
        run.apply(change)
        if (place := run.progress.place) is not None:
            replicas.store.note_lowest(run.key, place, run.most_averaged)
        completed = finite and run.step >= run.schedule.total_steps  # its end, whatever the policy says of its curve
        if completed or verdict is not None:
            self._endings.begin(replicas, run, None if completed else verdict)
        elif (rung := run.rung()) is not None:
            run.apply(RungReached(rung, result.loss, result.scores))
            if run.record.awaits_rank:
                self._to_rank[task.key] = task

    def _apply_rank_decisions(self, replicas: Replicas) -> None:
        """At a rung: let go on or end the jobs whose rank is certain, and park those in warmup that must wait for others."""
        tasks, self._to_rank = self._to_rank, {}
        for task in tasks.values():
            for run, verdict in certain_ranks(task):
                if verdict is None:
                    task.promoted(run)
                    self._recheck_admission = True
                else:
                    if run.stage is Stage.WARMUP:
                        task.parked(run)  # so that the service learns its warmup loss, which stays in the ranking
                    self._endings.begin(replicas, run, verdict)
            for run in at_boundary(task):
                task.parked(run)
                replicas.store.park(run.key)
                self._recheck_admission = True

    def _detach_finished(self) -> None:
        """Detach placements whose jobs have all ended, or are all stored where the placement was asked to leave."""
        for task in self._attached.open:
            if task.leaving:
                self._baselines.drop_unneeded(task)
                self._texts.drop_unneeded(task)
            busy = task.detaching or task in self._baselines or task in self._texts
            if not busy and (task.all_ended or (task.leaving and task.safe)):
                self._attached.finish(task)

    def _stop(self, seconds: float) -> None:
        """Checkpoint all jobs within `seconds`, and end the loop."""
        deadline, self._stopping = boot_now() + seconds, True
        if self._replicas is not None:
            self._checkpoint_policy.take(self._attached.open, self._replicas.store, now=True)  # jobs that go on come first
            self._endings.finish(self._replicas, deadline)
            self._checkpoint_policy.take_last(lambda: self._attached.open, self._replicas.store, self._inbox, deadline)
        self._attached.drain(deadline)
        self._checkpoint_policy.drain(deadline)
