"""What an estimate may cost: it knows what the last one worked out, looks at so much of a file, and comes so often."""

import pytest

from contract.task_spec import TaskSpec
from service.files.models import File
from service.scheduler import estimate_warnings
from service.scheduler.estimate import task_workload
from service.scheduler.estimate.task_duration import BYTES_PER_TOKEN
from service.tasks.models import Task
from tests.service.api import Caller
from tests.service.live_server import until


@pytest.fixture
def worked_out(monkeypatch) -> list[str]:
    """The jobs whose progress was worked out from their rows."""
    seen: list[str] = []
    real = task_workload.progress_of

    def counted(spec, job, rows):
        seen.append(job.status)
        return real(spec, job, rows)

    monkeypatch.setattr(task_workload, "progress_of", counted)
    return seen


def test_the_second_estimate_works_out_its_own_task_alone(tenant, new_node, plan, worked_out):
    new_node()
    for _ in range(4):
        tenant.task()
    plan()
    spec = tenant.spec(tenant.file())
    worked_out.clear()
    assert tenant.post("/v1/tasks/estimate", json=spec).json()["jobs"] == 2
    first, _ = len(worked_out), worked_out.clear()
    assert first >= 2 * 4
    wider = tenant.post("/v1/tasks/estimate", json=spec | {"search_space": {"learning_rate": [1e-4, 1e-3, 2e-3]}}).json()
    assert wider["jobs"] == 3, "another task than the one asked about before"
    assert len(worked_out) <= 3 + 2, "its own jobs, and those of what runs"


def test_a_file_is_looked_at_as_far_as_a_limit(tenant, new_node, monkeypatch):
    new_node()
    rows = [{"prompt": "x" * (2000 if at in (1, 15) else 20), "completion": "y"} for at in range(20)]
    spec = tenant.spec(tenant.file(rows))

    def told() -> list[tuple]:
        answer = tenant.post("/v1/tasks/estimate", json=spec)
        assert answer.status_code == 200, answer.text
        return [(one["code"], one["line"]) for one in answer.json()["problems"]]

    assert told() == [("row_truncated", 2), ("row_truncated", 16)]
    again = [{"prompt": f"{row['prompt']}!", "completion": "y"} for row in rows]
    spec = tenant.spec(tenant.file(again))
    monkeypatch.setattr(estimate_warnings, "_LOOKED_AT", 2200)
    found = told()
    assert found[0] == ("row_truncated", 2)
    assert [code for code, _ in found[1:]] == ["rows_not_looked_at"]
    assert 2 < found[1][1] < 16


def test_of_a_pair_of_answers_each_is_cut_by_itself(tenant, new_node):
    """Line 1 has more tokens than max_seq_len, neither of its two sequences has; those of line 2 are cut, and both count."""
    new_node()
    short = {"prompt": "x" * 700, "chosen": "y" * 1400, "rejected": "z" * 1400}
    long = {"prompt": "x" * 7000, "chosen": "y" * 7000, "rejected": "z"}
    training, lines = {"epochs": 1, "max_seq_len": 700}, [short, long, *({**short, "prompt": f"{at}"} for at in range(8))]
    spec = tenant.spec(tenant.file(lines), objective={"type": "dpo"}, training=training)
    said = tenant.post("/v1/tasks/estimate", json=spec).json()
    assert [(one["code"], one["line"]) for one in said["problems"]] == [("row_truncated", 2)]
    cut = tenant.spec(
        tenant.file([long] * 2 + [{**long, "prompt": "x" * 6999}] * 8), objective={"type": "dpo"}, training=training
    )
    trained = tenant.post("/v1/tasks/estimate", json=cut).json()["full_tokens"]
    assert trained == 2 * 8 * 2 * 700, "two jobs, eight rows, two sequences"


def test_rows_are_estimated_as_a_worker_parts_them():
    def estimated(rows: int, held_out: File | None = None, **dataset: object) -> tuple[int, int]:
        told = {"base_model": "b", "dataset": {"file_id": "f", **dataset}, "search_space": {"learning_rate": [1e-3]}}
        return task_workload.rows_of(Task(), TaskSpec.model_validate(told), File(rows=rows), held_out)

    assert estimated(10, validation_fraction=0.25) == (7, 3), "a half is rounded up"
    assert estimated(10_000) == (9_488, 512)
    named = {"validation_file_id": "v", "max_validation_rows": 16}
    assert estimated(10, File(rows=3000), **named) == (10, 3000), "a validation file is taken whole"


def test_a_prompt_is_counted_before_either_answer(tenant, new_node):
    new_node()
    rows = [{"prompt": f"{at:02}" + "x" * 1498, "chosen": "y" * 150, "rejected": "z" * 150} for at in range(10)]
    spec = tenant.spec(tenant.file(rows), objective={"type": "dpo"}, training={"epochs": 1, "max_seq_len": 700})
    trained = tenant.post("/v1/tasks/estimate", json=spec).json()["full_tokens"]
    each = 2 * 1500 + 2 * 150
    assert 2 * 8 * each / BYTES_PER_TOKEN <= trained <= 2 * 8 * (each + 120) / BYTES_PER_TOKEN


def test_a_tenant_asks_so_often_and_no_more(serve, settings_for, new_database_url, tmp_path):
    caller = serve(settings_for(new_database_url, tmp_path, estimates_per_minute=3))
    other = serve(settings_for(new_database_url, tmp_path, estimates_per_minute=3))
    spec = caller.spec("file_none")

    def refused(who: Caller) -> bool:
        answer = who.post("/v1/tasks/estimate", json=spec)
        assert answer.status_code in (422, 429), answer.text
        if answer.status_code == 429:
            assert answer.json()["code"] == "rate_limit_exceeded"
            assert "The limit is 3 estimates of this tenant a minute" in answer.json()["detail"]
            assert int(answer.headers["retry-after"]) >= 1
        return answer.status_code == 429

    assert [refused(caller) for _ in range(3)] == [False] * 3
    until(lambda: refused(caller))
    assert not refused(other), "each tenant has its own"
    assert caller.get("/v1/tasks").status_code == 200, "all else goes on"
