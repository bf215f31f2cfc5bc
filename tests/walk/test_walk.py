"""The walk: a task posted over HTTP comes back as a trained adapter. Real processes, sockets, rows and weights."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy

from tests.walk.running_stack import BASE_MODEL, ROOT, RunningStack, gsm8k, running_stack, short_rows, unpacked

USE_ADAPTER = ROOT / "examples" / "use_adapter.py"  # transformers and PEFT alone; nothing of Motet
LEARNABLE = {"method": "grid", "learning_rate": [3e-3], "rank": [8], "batch_size": [8]}


@pytest.fixture(scope="module")
def motet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Heartbeats come once an hour: whatever a node is to begin or to let go, its hints alone tell it here."""
    hourly = {"MOTET_HEARTBEAT_SECONDS": "3600", "MOTET_LEASE_SECONDS": "7200"}
    with running_stack(tmp_path_factory.mktemp("motet"), slots=2, **hourly) as it:
        yield it


def peft_losses(adapter: Path, rows: list[dict[str, Any]], folder: Path) -> dict[str, float]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, str(USE_ADAPTER), str(adapter), "--base", str(BASE_MODEL), "--json"]
    command += ["--rows", str(folder / "rows.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_posted_task_comes_back_as_a_trained_adapter(motet: RunningStack, tmp_path: Path) -> None:
    validation = short_rows(12, skip=64, words=20)
    task_id = motet.submit(
        dataset={"file_id": motet.upload(short_rows(40, words=20)), "validation_file_id": motet.upload(validation)},
        search_space={"method": "grid", "learning_rate": [3e-3, 3e-4, 1e6], "rank": [4, 24], "batch_size": [2]},
        training={"epochs": 1, "max_seq_len": 512},
        early_exit={
            "policy": "alto",
            "warmup_fraction": 0.25,
            "keep_fraction": 0.5,
            "eval_every": 5,
            "max_evaluation_share": None,
        },
    )
    task = motet.ended(task_id)
    assert task["status"] == "succeeded"

    jobs = motet.jobs(task_id)
    assert [job["index"] for job in jobs] == list(range(6))
    assert all(job["status"] in ("completed", "exited") for job in jobs)
    ruined = [job for job in jobs if job["config"]["learning_rate"] == 1e6]
    assert {job["exit"]["reason"] for job in ruined} <= {"diverging", "underperforming", "overfitting"}
    assert all(job["exit"]["evidence"] for job in ruined)
    completed = [job for job in jobs if job["status"] == "completed"]
    assert completed
    assert {job["config"]["learning_rate"] for job in completed} <= {3e-3, 3e-4}

    curves = motet.curves(task_id)
    for job in jobs:
        assert job["total_steps"] == 20
        train = curves[job["index"], "train_loss"]
        assert list(train) == list(range(1, job["step"] + 1)), "every step of the curve is there once"
    for job in completed:
        assert job["step"] == 20
        lowest = min(v for v in curves[job["index"], "val_loss"].values() if v is not None)
        adapter = motet.http.get(f"/v1/adapters/{job['adapter_id']}").json()
        assert adapter["val_loss"] == job["best_val_loss"]
        assert job["best_val_loss"] < lowest if adapter["averaged_steps"] else job["best_val_loss"] == lowest

    winner = task["winner"]
    committed = [job for job in jobs if job["adapter_id"]]
    assert min(job["best_val_loss"] for job in committed) <= winner["val_loss"] < task["base_val_loss"]
    chosen = task["selection"]
    assert (chosen["rule"], chosen["rows"], chosen["beats_base"]) == ("one_standard_error", 12, True)
    assert winner["index"] in chosen["tied"]
    assert chosen["value"]["mean"] == pytest.approx(winner["val_loss"])
    assert chosen["gain"]["mean"] == pytest.approx(task["base_val_loss"] - winner["val_loss"])
    assert task["samples"]["trained"] < task["samples"]["full"]

    # One forward for all adapters of a micro-batch: a loop over jobs would show here.
    assert task["placement"]["forwards"] == task["placement"]["micro_batches"]
    assert task["placement"]["micro_batches"] < sum(job["step"] for job in jobs) / 2

    archive = motet.http.get(f"/v1/tasks/{task_id}/adapter")
    assert archive.status_code == 200, archive.text
    folder = unpacked(archive.content, tmp_path)
    files = motet.http.get(f"/v1/adapters/{winner['adapter_id']}").json()["files"]
    assert {f["path"] for f in files} | {"README.md"} == {path.name for path in folder.iterdir()}
    assert f"{winner['val_loss']:.4f}" in (folder / "README.md").read_text()
    for file in files:
        content = motet.http.get(f"/v1/adapters/{winner['adapter_id']}/files/{file['path']}").content
        assert sha256(content).hexdigest() == file["sha256"]
        assert content == (folder / file["path"]).read_bytes()

    again = peft_losses(folder, validation, tmp_path)
    assert abs(again["adapter_loss"] - winner["val_loss"]) < 1e-3
    assert abs(again["base_loss"] - task["base_val_loss"]) < 1e-3


def test_a_search_proposes_what_its_later_round_tries(motet: RunningStack) -> None:
    task_id = motet.submit(
        dataset={"file_id": motet.upload(short_rows(24, words=10))},
        search_space={"method": "tpe", "n": 10, "learning_rate": [3e-3, 1e-3, 1e-4, 1e6], "rank": [4, 8], "batch_size": [2, 4]},
        training={"max_steps": 10},
        early_exit={"warmup_fraction": 0.2},
    )
    task = motet.ended(task_id)
    jobs = motet.jobs(task_id)
    assert task["status"] == "succeeded", [job["error"] for job in jobs]
    assert all(job["proposed"] and job["status"] in ("completed", "exited") for job in jobs)
    assert len({json.dumps(job["config"], sort_keys=True) for job in jobs}) == 10
    assert max(job["started_at"] for job in jobs[:8]) < min(job["started_at"] for job in jobs[8:])


def _made_rows(rng: random.Random, rows: int) -> list[dict[str, Any]]:
    """A fresh little world: each town has one dish, and the rows ask for it in turn."""
    letters = "abcdefghijklmnoprstuvw"
    towns = {
        "".join(rng.choices(letters, k=5)): " ".join("".join(rng.choices(letters, k=4)) for _ in range(3)) for _ in range(12)
    }
    asked = [rng.choice(sorted(towns)) for _ in range(rows)]
    # Numbered, since equal rows are held out together: a held-out town must have been seen in training.
    return [{"prompt": f"{n}. What do they eat in {town}? ", "completion": towns[town]} for n, town in enumerate(asked)]


def test_rows_made_just_now_are_learnt_and_shuffled_completions_are_not(motet: RunningStack) -> None:
    rng = random.Random()
    rows = _made_rows(rng, 240)
    completions = [row["completion"] for row in rows]
    rng.shuffle(completions)
    shuffled = [{**row, "completion": c} for row, c in zip(rows, completions, strict=True)]

    spec = {"search_space": LEARNABLE, "training": {"epochs": 3}, "early_exit": {"policy": "none", "eval_every": 30}}
    first = motet.submit(dataset={"file_id": motet.upload(rows)}, **spec)
    second = motet.submit(dataset={"file_id": motet.upload(shuffled)}, **spec)
    true, false = motet.ended(first)["winner"], motet.ended(second)["winner"]
    assert true["val_loss"] < 0.5 * false["val_loss"], (true, false)


def test_a_task_takes_a_second_device_only_where_nobody_needs_it_and_trains_the_same_on_both(motet: RunningStack) -> None:
    spec = {
        "dataset": {"file_id": motet.upload(_made_rows(random.Random(), 48))},
        "search_space": {**LEARNABLE, "learning_rate": [3e-3, 1e-3], "batch_size": [4]},
        "training": {"max_steps": 3},
        "early_exit": {"policy": "none", "eval_every": 3},
    }
    (node,) = motet.as_admin("GET", "/v1/admin/nodes")["data"]
    motet.as_admin("POST", f"/v1/admin/nodes/{node['id']}/drain")  # so that one plan sees both
    _believe_steps_to_be_long(motet)
    beside, other = motet.submit(max_gpus=2, **spec), motet.submit(**spec | {"search_space": LEARNABLE})
    for task_id in (beside, other):
        motet.until(task_id, lambda task: task["waiting"] is not None and task["waiting"]["code"] == "node_drained")
    motet.as_admin("POST", f"/v1/admin/nodes/{node['id']}/undrain")
    narrow, _ = motet.ended(beside), motet.ended(other)
    assert narrow["placement"]["gpus"] == 1

    _believe_steps_to_be_long(motet)
    alone = motet.submit(max_gpus=2, **spec)
    wide = motet.ended(alone)
    _believe_nothing(motet)
    assert wide["placement"]["gpus"] == 2
    assert wide["placement"]["steps"] == 3
    assert wide["placement"]["micro_batches"] == 6, "one of each replica a step"
    assert motet.curves(alone) == motet.curves(beside)
    files = [motet.http.get(f"/v1/adapters/{task['winner']['adapter_id']}").json()["files"] for task in (wide, narrow)]
    shas = [{file["path"]: file["sha256"] for file in listed} for listed in files]
    assert shas[0] == shas[1] != {}


def _believe_steps_to_be_long(motet: RunningStack) -> None:
    """A second a token on every device, as if it had been measured: a second device pays, however fast this machine is."""
    columns = "base_model, precision, device_type, tokens, rows, width, measured, mean_tokens, log_seconds, variance"
    first = f"INSERT INTO throughput_profiles ({columns}) VALUES ('base', 'bf16', 'cpu', 64, 8, 1, 8, 64, 0, 0)"
    _execute(motet, f"{first} ON CONFLICT DO NOTHING")
    _execute(motet, "UPDATE throughput_profiles SET log_seconds = ln(mean_tokens), variance = 0")


def _believe_nothing(motet: RunningStack) -> None:
    """No measured steps: those who train next are not expected to take hours."""
    _execute(motet, "DELETE FROM throughput_profiles")


def _execute(motet: RunningStack, statement: str) -> None:
    engine = sqlalchemy.create_engine(motet.database_url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(statement))
    engine.dispose()


def test_two_tenants_train_at_once_and_cannot_see_each_other(motet: RunningStack) -> None:
    other = motet.tenant(f"other-{random.getrandbits(40):x}")
    spec = {"early_exit": {"policy": "none", "eval_every": 80}}

    def submitted(http: httpx.Client, batch_size: int, epochs: int) -> str:
        dataset = {"file_id": motet.upload(gsm8k(64), http)}
        space = {"method": "grid", "learning_rate": [1e-3], "rank": [8], "batch_size": [batch_size]}
        training = {"epochs": epochs, "max_seq_len": 64}
        return motet.submit(http, dataset=dataset, search_space=space, training=training, **spec)

    mine = submitted(motet.http, 1, 100)
    assert motet.until(mine, lambda task: task["progress"]["steps_done"] > 0)["status"] == "running"
    theirs = submitted(other, 8, 2)
    motet.until(theirs, lambda task: task["progress"]["steps_done"] > 0, http=other)
    assert motet.task(mine)["status"] == "running", "the longer one was still at work when the other had begun"

    for http, foreign in ((motet.http, theirs), (other, mine)):
        for path in ("", "/jobs", "/metrics", "/adapter"):
            assert http.get(f"/v1/tasks/{foreign}{path}").status_code == 404
        assert http.post(f"/v1/tasks/{foreign}/cancel").status_code == 404
        assert foreign not in http.get("/v1/tasks").text
    ended = motet.ended(theirs, http=other)
    assert ended["status"] == "succeeded"
    for path in ("", "/archive", "/files/adapter_config.json"):
        assert motet.http.get(f"/v1/adapters/{ended['winner']['adapter_id']}{path}").status_code == 404
        assert other.get(f"/v1/adapters/{ended['winner']['adapter_id']}{path}").status_code == 200
    assert motet.http.post(f"/v1/tasks/{mine}/cancel").json()["status"] == "cancelled"


def test_a_cancelled_task_lets_its_node_go(motet: RunningStack) -> None:
    spec = {"training": {"epochs": 100, "max_seq_len": 64}, "early_exit": {"policy": "none"}}
    space = {"method": "grid", "learning_rate": [1e-3], "batch_size": [4]}
    task_id = motet.submit(dataset={"file_id": motet.upload(gsm8k(64))}, search_space=space, **spec)
    motet.until(task_id, lambda task: task["progress"]["steps_done"] > 2)
    assert motet.http.post(f"/v1/tasks/{task_id}/cancel").json()["status"] == "cancelled"
    points = motet.curves(task_id)[0, "train_loss"]
    quick = motet.submit(
        dataset={"file_id": motet.upload(_made_rows(random.Random(), 40))},
        search_space=LEARNABLE,
        training={"epochs": 1},
        early_exit={"policy": "none", "eval_every": 10},
    )
    assert motet.ended(quick)["status"] == "succeeded"
    assert motet.curves(task_id)[0, "train_loss"] == points, "nothing was written after the cancel"
    assert all(math.isfinite(value) for value in points.values() if value is not None)
