"""The executor: one frozen base, and jobs of any task that train on it together. `python -m worker.executor` is its process.

    while jobs: admit -> pack -> step -> record -> judge -> release

One step is an optimizer step of every job that holds a slot. The loop decides with the pure policies, does with the trainer,
and records through each task's reporter; all slow company (network, disk, tokenising) is kept on benches beside it, which
hand acts back into its queue.
"""

import math
import queue
import signal
import time
from collections.abc import Callable
from functools import partial

from contract.adapter import AdapterManifest
from contract.wire import AdapterKept, JobCompleted, JobExited, Placement
from worker.clock import boot_now
from worker.evaluate import Examined, evaluate
from worker.job_run import JobRun, Stage
from worker.keeper import Keeper
from worker.lease import Lease
from worker.leash import put_on_leash
from worker.link import PlacementLink
from worker.logs import log_to_stderr
from worker.model.memory import keep_freed_blocks
from worker.model.trainer import OutOfMemory
from worker.pipe import COMMANDS, Attach, Detach, Ended, Progress, Renew, Stop, Writer, take_stdout
from worker.policy.admission import admit, refusal
from worker.policy.verdict import Verdict, not_finite
from worker.preparation import Prepared
from worker.roster import Act, Roster
from worker.safeguard import Safeguard
from worker.scratch import Scratch
from worker.settings import Settings
from worker.slots import Slots
from worker.step import Stepped, step
from worker.task_run import TaskRun, keeps_adapter
from worker.yardstick import set_yardstick

_IDLE_SECONDS = 1.0  # between looks at the leases while nothing trains
_TERMINATION_SECONDS = 5.0


class Executor:
    """`tell` speaks to the daemon. `obey` may be called from any thread; all else happens in `run`."""

    def __init__(self, settings: Settings, link: PlacementLink, tell: Callable[[Progress | Ended], None]) -> None:
        self._inbox: queue.SimpleQueue[Act] = queue.SimpleQueue()
        self._scratch = Scratch(settings.scratch / "objects")
        self._scratch.sweep()
        self._roster = Roster(settings, link, self._scratch, self._inbox.put, tell, self._opened, self._left)
        self._keeper = Keeper(link, self._scratch, self._inbox.put, self._roster.leave)
        self._safeguard = Safeguard(self._keeper, self._scratch, settings.worker_checkpoint_seconds)
        self._slots: Slots | None = None  # of the base that is loaded
        self._vacant = False  # whether jobs may find room that did not find it before
        self._unsettled: dict[str, TaskRun] = {}  # tasks whose standings at the boundary have changed
        self._stopping = False

    def run(self) -> None:
        """The loop, until told to stop."""
        while self._attend():
            if self._slots is None:
                continue
            self._admit(self._slots)
            runs = self._active()
            if runs:
                stepped = self._step(self._slots, runs)
                self._record(self._slots, stepped)
                self._judge(self._slots, [run for run in stepped.losses if run.slot is not None and run.due])
            self._settle(self._slots)
            self._release()
            self._safeguard.take(self._roster.open, self._slots)

    # ---- commands and acts -----------------------------------------------------------------------------------------

    def obey(self, command: Attach | Renew | Detach | Stop) -> None:
        match command:
            case Attach():
                self._inbox.put(partial(self._attach, command.placement, self._roster.lease(command)))
            case Renew():
                self._roster.renew(command)
            case Detach():
                self._inbox.put(partial(self._roster.detach, command))
            case Stop():
                self._inbox.put(partial(self._stop, command.seconds))

    def _attend(self) -> bool:
        """Do what was handed over, and wait for it while nothing trains. False when the loop is to end."""
        idle = not self._active() and not self._vacant and not self._unsettled
        try:
            act = self._inbox.get(timeout=_IDLE_SECONDS) if idle else self._inbox.get_nowait()
            while True:
                act()
                act = self._inbox.get_nowait()
        except queue.Empty:
            pass
        if idle:
            self._roster.progress()
        self._roster.expire()
        return not self._stopping

    def _attach(self, placement: Placement, lease: Lease) -> None:
        if not self._roster.tasks and self._slots is not None and self._slots.base.ref != placement.base:
            self._slots = None  # another base needs the memory
        self._roster.attach(placement, lease)

    def _opened(self, task: TaskRun, prepared: Prepared) -> None:
        """A placement's jobs can be scheduled now."""
        base = prepared.base
        if self._slots is None or self._slots.base is not base:
            self._slots = Slots(base, prepared.capacity, self._scratch)
        self._slots.widen(prepared.capacity, prepared.data.longest)
        for run in task.runs:
            run.start = prepared.start
            if run.index in prepared.checkpoints:
                self._slots.adopt(run, prepared.checkpoints[run.index][0])
            why = refusal(run.demand, self._slots.capacity)
            if why is not None:
                self._slots.forget(run)
                task.failed(run, why)
        runs = [run for run in task.runs if run.unfinished]
        while runs:
            try:
                set_yardstick(self._slots, task, prepared, self._scratch, self._roster.progress)
                break
            except OutOfMemory as error:
                runs = self._relieve(self._slots, runs, error.tokens)
        self._safeguard.expect(task)
        self._vacant = True
        self._unsettled[task.key] = task

    def _left(self, task: TaskRun) -> None:
        """A placement is here no more."""
        if self._slots is not None:
            for run in task.runs:
                self._slots.forget(run)
        self._unsettled.pop(task.key, None)
        self._vacant = True

    # ---- decide ----------------------------------------------------------------------------------------------------

    def _active(self) -> list[JobRun]:
        return [run for task in self._roster.training for run in task.runs if run.slot is not None]

    def _admit(self, slots: Slots) -> None:
        """Give slots to the jobs that the policy lets in."""
        if not self._vacant:
            return
        self._vacant = False
        waiting = {run: task for task in self._roster.training for run in task.runs if run.waits}
        chosen = admit([run.demand for run in self._active()], [run.demand for run in waiting], slots.capacity)
        keys = {demand.key for demand in chosen}
        runs = [run for run in waiting if run in keys]
        slots.give(runs)
        for run in runs:
            waiting[run].started(run)

    # ---- do --------------------------------------------------------------------------------------------------------

    def _step(self, slots: Slots, runs: list[JobRun]) -> Stepped:
        """A step of these jobs, in shorter passes where the device had no memory; without those for which none is short
        enough."""
        while True:
            try:
                stepped = step(slots.base.trainer, runs, slots.capacity.step_tokens, self._roster.progress)
                self._vacant |= slots.stepped()
                return stepped
            except OutOfMemory as error:
                runs = self._relieve(slots, runs, error.tokens)

    def _relieve(self, slots: Slots, runs: list[JobRun], tokens: int) -> list[JobRun]:
        """A pass of `tokens` tokens of these jobs found no memory. The jobs that go on."""
        hopeless = slots.tighten(tokens, runs)
        for run in hopeless:
            slots.forget(run)
            self._roster[run.group].failed(
                run,
                f"its sequences are up to {run.data.longest} tokens long, and the device had no memory for a pass of {tokens}; "
                "take a lower max_seq_len, or a worker with more memory",
            )
            self._vacant = True
            self._unsettled[run.group] = self._roster[run.group]
        return [run for run in runs if run not in hopeless]

    # ---- record ----------------------------------------------------------------------------------------------------

    def _record(self, slots: Slots, stepped: Stepped) -> None:
        for run, loss in stepped.losses.items():
            task = self._roster[run.group]
            task.reporter.point(run.index, "train_loss", run.step + 1, loss)
            said = stepped.preferences.get(run)
            if said is not None and math.isfinite(loss):
                task.reporter.point(run.index, "train_accuracy", run.step + 1, said.accuracy)
                task.reporter.point(run.index, "train_margin", run.step + 1, said.margin)
            broken = not_finite("train_loss", loss)
            if broken is None:
                run.learned(loss)
            else:
                run.step += 1
                self._end(slots, run, broken)
        tokens = sum(work.tokens for work in stepped.work.values())
        for group, work in stepped.work.items():
            self._roster[group].worked(stepped.seconds, work.tokens / tokens, work)

    # ---- judge -----------------------------------------------------------------------------------------------------

    def _judge(self, slots: Slots, due: list[JobRun]) -> None:
        """Evaluate the jobs that are due, all in one pass, and run Algorithm 1 on each as its loss is known."""
        began, left = time.monotonic(), {run: run.examinee for run in due}
        while left:
            try:
                for run, result in evaluate(slots.base.trainer, left, slots.capacity.step_tokens, self._roster.progress):
                    now = time.monotonic()
                    self._roster[run.group].evaluated(now - began, result.tokens)
                    began = now
                    self._judge_one(slots, run, result)
                    due.remove(run)
            except OutOfMemory as error:
                due = self._relieve(slots, due, error.tokens)
            left = {run: left[run] for run in due}

    def _judge_one(self, slots: Slots, run: JobRun, result: Examined) -> None:
        task, loss, finite = self._roster[run.group], result.loss, math.isfinite(result.loss)
        task.reporter.point(run.index, "val_loss", run.step, loss)
        if finite and result.accuracy is not None and result.margin is not None:
            task.reporter.point(run.index, "val_accuracy", run.step, result.accuracy)
            task.reporter.point(run.index, "val_margin", run.step, result.margin)
        if finite and (run.best is None or loss < run.best.val_loss):
            slots.note_best(run, loss)
        verdict = run.observe(task.policy, loss)
        if finite and run.step >= run.schedule.total_steps:
            self._end(slots, run, None)
        elif verdict is not None:
            self._end(slots, run, verdict)
        elif run.reached_rung(loss):
            self._unsettled[task.key] = task

    def _settle(self, slots: Slots) -> None:
        """At the warmup boundary, and later rungs: let go on or exit whose place is certain, and park who must wait."""
        tasks, self._unsettled = self._unsettled, {}
        for task in tasks.values():
            for run, verdict in task.settle():
                if verdict is None:
                    task.promoted(run)
                    self._vacant = True
                else:
                    if run.stage is Stage.WARMUP:
                        task.parked(run)  # its loss counts in the ranking for good
                    self._end(slots, run, verdict)
            for run in task.arrived():
                task.parked(run)
                slots.park(run)
                self._vacant = True

    # ---- release ---------------------------------------------------------------------------------------------------

    def _end(self, slots: Slots, run: JobRun, verdict: Verdict | None) -> None:
        """The job is decided (None: it completed). Its slot is free at once; its end is told when its adapter is stored."""
        task, weights = self._roster[run.group], run.best_weights
        closing = task.completion(run) if verdict is None else task.exit(run, verdict)
        slots.forget(run)
        self._vacant = True
        self._unsettled[task.key] = task
        if keeps_adapter(verdict, run.best) and weights is not None:
            run.stage = Stage.ENDING
            self._keeper.keep_adapter(task, run, slots.base, weights, partial(self._kept, task, run, closing))
        else:
            task.ended(run, closing)

    def _kept(self, task: TaskRun, run: JobRun, closing: JobCompleted | JobExited, manifest: AdapterManifest) -> None:
        task.ended(run, AdapterKept(job=run.index, manifest=manifest), closing)

    def _release(self) -> None:
        """Let go of placements whose jobs are all over, or all safe where they were asked to leave."""
        for task in self._roster.open:
            if not task.finishing and (task.over or (task.leaving and task.safe)):
                self._roster.finish(task)

    def _stop(self, seconds: float) -> None:
        """Bring all jobs to safety within `seconds`, and end the loop."""
        deadline = boot_now() + seconds
        self._stopping = True
        while self._slots is not None:
            self._safeguard.take(self._roster.open, self._slots, now=True)
            if not any(task.checkpointing for task in self._roster.open):
                break
            try:
                self._inbox.get(timeout=max(0.0, deadline - boot_now()))()
            except queue.Empty:
                break
        for task in self._roster.open:
            task.flush_throughput()
            task.reporter.drain(max(0.0, deadline - boot_now()))


def main() -> None:
    log_to_stderr()
    keep_freed_blocks()
    settings = Settings.load()
    writer = Writer(take_stdout())
    with PlacementLink(settings.api_url) as link:
        executor = Executor(settings, link, writer.write)
        put_on_leash(COMMANDS, executor.obey)
        signal.signal(signal.SIGTERM, lambda *_: executor.obey(Stop(seconds=_TERMINATION_SECONDS)))
        executor.run()


if __name__ == "__main__":
    main()
