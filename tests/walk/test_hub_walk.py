"""A base named by its hub id, trained on a node that never saw it: from the hub, where the executor is killed in the middle of
the download, and from storage, with the hub switched off."""

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.hub.hub_process import COMMIT, hub_process
from tests.walk.running_stack import gsm8k, running_stack, until


def test_a_base_named_by_its_hub_id_is_trained_on_a_node_that_never_saw_it(tmp_path: Path) -> None:
    quick = {"MOTET_HEARTBEAT_SECONDS": "1", "MOTET_LEASE_SECONDS": "20"}
    with hub_process(tmp_path / "hub") as hub:
        weights = hub.add("org/seven-million") / "model.safetensors"
        with running_stack(tmp_path / "state", HF_ENDPOINT=hub.url, **quick) as motet:
            until(lambda: motet.as_admin("GET", "/v1/admin/nodes")["data"])
            told = motet.as_admin("POST", "/v1/models", json={"source": "hf://org/seven-million"})
            assert (told["commit"], told["license"]) == (COMMIT, "apache-2.0")
            assert told["fits"], "a node is there"
            assert not [line for line in hub.requests if line[1] == "bytes=0-"], "no weights before a task needs them"

            hub.faults(block=2**18, seconds=0.3)
            spec = {
                "base_model": "org/seven-million",
                "dataset": {"file_id": motet.upload(gsm8k(24)), "validation_fraction": 0.25},
                "search_space": {"learning_rate": [3e-3], "rank": [4], "batch_size": [4]},
                "training": {"max_steps": 4, "epochs": 1, "max_seq_len": 256},
            }
            task_id = motet.submit(**spec)
            task = motet.until(task_id, lambda task: bool(task["placement"] and task["placement"]["loading"]))
            assert "base model org/seven-million: " in task["placement"]["loading"]
            assert "of 14.6 MB fetched from the hub" in task["placement"]["loading"]
            loading: list[int] = []
            until(lambda: loading.extend(filter(fetches, motet.below("worker", "worker.executor"))) or loading)
            os.kill(loading[0], signal.SIGKILL)
            motet.until(task_id, lambda task: task["status"] == "queued" or task["placement"]["loading"] is None)
            hub.faults()
            task = motet.ended(task_id)
            assert (task["status"], task["winner"] is not None) == ("succeeded", True)
            assert task["placement"]["loading"] is None

            asked = [line[1] for line in hub.requests if line[0].endswith("model.safetensors") and line[0].startswith("/cdn/")]
            first, *resumed = [range_ for range_ in asked if range_.endswith("-")]
            assert first == "bytes=0-"
            assert resumed, "what was killed goes on"
            assert all(0 < int(one[6:-1]) < weights.stat().st_size for one in resumed)
            before = len(hub.requests)
            assert motet.ended(motet.submit(**spec))["status"] == "succeeded"
            assert len(hub.requests) == before, "the node keeps it"


def test_a_base_in_storage_is_trained_on_a_node_that_never_saw_it_with_the_hub_switched_off(tmp_path: Path) -> None:
    with hub_process(tmp_path / "hub") as hub:
        hub.add("org/seven-million")
        with running_stack(tmp_path / "state", HF_ENDPOINT=hub.url) as motet:
            told = motet.as_admin("POST", "/v1/models", json={"source": "hf://org/seven-million", "store": True})
            assert told["storage"]["status"] == "copying"
            copied = partial(motet.as_admin, "GET", "/v1/models/org/seven-million")
            until(lambda: copied()["storage"]["status"] != "copying")
            assert copied()["storage"]["status"] == "stored"
            hub.close()
            task = motet.ended(
                motet.submit(
                    base_model="org/seven-million",
                    dataset={"file_id": motet.upload(gsm8k(24)), "validation_fraction": 0.25},
                    search_space={"learning_rate": [3e-3], "rank": [4], "batch_size": [4]},
                    training={"max_steps": 4, "epochs": 1, "max_seq_len": 256},
                )
            )
            assert (task["status"], task["winner"] is not None) == ("succeeded", True)


def fetches(pid: int) -> bool:
    """Whether the process has the weights of a base open, a part of which is there."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # it was closed, or is whole and has its name
            name = os.readlink(f"/proc/{pid}/fd/{number}")
            if name.endswith(".partial/model.safetensors") and os.stat(name).st_size > 2**20:
                return True
    return False
