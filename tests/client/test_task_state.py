"""Why a job was stopped, as the live view and the demo say it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from motet.api.resources import Exit, Job, Task
from motet.display.task_state import TaskState, why

from contract.states import ExitReason

CONFIG = {"learning_rate": 1e-3, "rank": 8, "alpha": 16, "batch_size": 4, "seed": 0}


def task(**changes: Any) -> Task:
    made = {"id": "task_1", "status": "running", "base_model": "small", "base_revision": "a", "spec": {}, "version": 1}
    return Task.model_validate(made | {"created_at": datetime.now(UTC).isoformat()} | changes)


def job(index: int = 0, **changes: Any) -> Job:
    made = {"id": f"job_{index}", "task_id": "task_1", "index": index, "config": CONFIG, "status": "training", "step": 5}
    return Job.model_validate(made | changes)


class Tasks:
    """The jobs at each refresh, in turn, and no curves."""

    def __init__(self, *jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)

    def jobs(self, task_id: str) -> Sequence[Job]:
        return self._jobs.pop(0)

    def metrics(self, task_id: str, **_: Any) -> Sequence[Any]:
        return []


class Api:
    def __init__(self, *jobs: Sequence[Job]) -> None:
        self.tasks = Tasks(*jobs)


def news(view: TaskState, *states: tuple[Task, Sequence[Job]]) -> list[str]:
    api = Api(*(jobs for _, jobs in states))
    return [said for state, _ in states for said in view.refresh(api, state)]  # type: ignore[arg-type]


def test_how_a_task_ended_is_not_told_before_its_last_job() -> None:
    ended = task(status="succeeded"), [job(status="completed", best_val_loss=0.5)]
    said = news(TaskState(task()), (task(), [job()]), ended)
    assert said == ["job 0 (lr 0.001) completed its 5 steps, best validation loss 0.500"]


def test_an_ended_job_has_the_loss_it_is_judged_by_and_not_the_lowest_of_its_trend() -> None:
    view = TaskState(task())
    view.curves[0, "val_loss"] = {4: 0.5, 5: 0.6}
    assert view.best(job(best_val_loss=0.55)) == 0.5
    assert view.best(job(status="completed", best_val_loss=0.75)) == 0.75
    assert view.best(job(status="exited")) == 0.5


def test_rows_that_validate_and_train_are_told_once() -> None:
    counted = task(rows={"train": 9, "validation": 5, "overlap": 4})
    said = news(TaskState(task()), (task(), [job()]), (counted, [job()]), (counted, [job()]))
    assert said == [counted.rows.overlap_sentence]
    assert said[0].startswith("4 of 5 validation rows are also trained on")


def test_rows_that_were_cut_or_left_out_are_told_once() -> None:
    counted = task(rows={"train": 9, "validation": 5, "truncated": 4, "skipped": 2})
    said = news(TaskState(task()), (task(), [job()]), (counted, [job()]), (counted, [job()]))
    assert said == [counted.rows.cut_sentence]
    assert said[0].startswith("4 rows were longer than training.max_seq_len")


@pytest.mark.parametrize(("policy", "jobs", "told"), [("alto", 2, True), ("none", 2, False), ("alto", 1, False)])
def test_a_selection_is_told_only_where_there_is_one(policy: str, jobs: int, told: bool) -> None:
    spec = {"early_exit": {"policy": policy}}
    before, after = [job(at, status="warmup") for at in range(jobs)], [job(at, promoted=True) for at in range(jobs)]
    said = news(TaskState(task(spec=spec)), (task(spec=spec), before), (task(spec=spec), after))
    assert any("passed the selection" in line for line in said) == told


def test_a_waiting_task_gives_its_reason_once_and_counts_down() -> None:
    def waits(seconds: float, code: str = "waiting_for_capacity", sentence: str = "It needs 1 GPU.") -> Task:
        start = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
        return task(status="queued", waiting={"code": code, "sentence": sentence, "place": 2, "expected_start": start})

    view = TaskState(waits(40))
    states = [waits(40), waits(30, sentence="It needs 1 GPU. 1 task is planned before it."), waits(25, "fair_share", "Later.")]
    assert news(view, *((state, []) for state in states)) == ["It needs 1 GPU.", "Later."]
    assert view.summary().startswith("queued · place 2 · starts in about 2")
    assert news(view, (waits(-5, "fair_share", "Later."), [])) == []
    assert view.summary() == "queued · place 2 · its start is due"


def underperforming(rank: int, finished: int) -> str:
    seen = {"pattern": "ranks below the cut", "rank": rank, "finished": finished, "alive": 16, "kept": 4}
    return why(Exit(reason=ExitReason.UNDERPERFORMING, step=9, evidence=seen))


def test_a_rank_says_of_how_many_it_is():
    assert underperforming(13, 16) == "13th of 16 after warmup, at most 4 go on"
    assert underperforming(5, 7) == "5th of the first 7 of 16 after warmup, at most 4 go on"


def test_a_paired_test_says_what_it_compared_and_how_surely() -> None:
    """It foretells nothing of how training would have gone on."""
    seen = {"pattern": "worse", "difference_low": 0.49021, "difference_high": 0.68354, "rows": 12, "rank": 3, "alive": 10}
    said = why(Exit(reason=ExitReason.UNDERPERFORMING, step=8, evidence=seen))
    assert said == "worse than the best at the end of warmup by 0.49 to 0.68 (95 %, 12 validation rows)"
    small = seen | {"difference_low": 0.00123, "difference_high": 12.3}
    assert "by 0.0012 to 12 (" in why(Exit(reason=ExitReason.UNDERPERFORMING, step=8, evidence=small))


def test_a_reason_without_numbers_says_its_pattern():
    bare = Exit(reason=ExitReason.DIVERGING, step=9, evidence={"pattern": "loss is not finite"})
    assert why(bare) == "loss is not finite"


@pytest.mark.parametrize(("beta", "before"), [(0.1, 1), (0.5, None)])
def test_losses_of_several_betas_name_no_leader_before_there_is_a_winner(beta: float, before: int | None) -> None:
    losses = ((0.1, 0.2), (beta, 0.0625), (0.1, 0.75))
    jobs = [job(at, config=CONFIG | {"beta": one}, best_val_loss=loss) for at, (one, loss) in enumerate(losses)]
    view = TaskState(task(), jobs)
    assert (view.leader.index if view.leader is not None else None) == before
    assert ("best validation loss" in view.summary()) == (before is not None)
    winner = {"job_id": "job_2", "index": 2, "config": CONFIG, "adapter_id": "adapter_1", "val_loss": 0.75, "step": 3}
    view.task = task(winner=winner)
    assert view.leader is jobs[2]
    assert "best validation loss 0.750 (job 2)" in view.summary()
    assert sorted(jobs, key=view.best_first)[0] is jobs[2]


@pytest.mark.parametrize(
    ("status", "rows", "said"),
    [
        ("training", {"validation": 16, "trend": 8}, "(job 0, on 8 of 16 rows)"),
        ("training", {"validation": 16, "trend": 16}, "(job 0)"),
        ("training", {"validation": 16}, "(job 0)"),  # of an earlier service
        ("completed", {"validation": 16, "trend": 8}, "(job 0)"),
    ],
)
def test_the_best_loss_so_far_says_of_how_many_rows_it_is(status: str, rows: dict[str, int], said: str) -> None:
    view = TaskState(task(rows=rows), [job(status=status, best_val_loss=0.5)])
    assert view.summary().endswith(f"best validation loss 0.500 {said}")
