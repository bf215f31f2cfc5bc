"""A base's revision is checked beside what is prepared on it, and before anything trains or is kept by it."""

import gc
import os
import shutil
import threading
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.messages.placement_messages import BaseModelRef, Placement
from contract.messages.report_messages import PlacementFailed
from tests.worker.fleet import Fleet
from tests.worker.inside import Inside
from tests.worker.placer import placer
from tests.worker.reported import Reported
from worker.data.object_cache import OBJECTS
from worker.executor.placement.placement_lease import Lease
from worker.executor.preparation.executor_base import BaseUse, ExecutorBase
from worker.model import backbone
from worker.model.base_weight_reader import in_folder
from worker.model.plain.trainer import Trainer
from worker.pipe_messages import ExecutorProgress, PlacementEnded
from worker.replicas import base_loader
from worker.replicas.ranks.rank_group import LoadedBase, RankGroup

PATIENCE = 60.0
SPACE = {"learning_rate": [3e-3], "rank": [4], "batch_size": [2]}
SHORT: dict[str, Any] = {"training": {"max_steps": 2}}


def why_failed(reported: Reported) -> str:
    (failed,) = reported.of(PlacementFailed)
    return failed.error


def test_other_weights_train_nothing_and_leave_no_memory_profile(fleet: Fleet, changed: BaseModelRef, tmp_path: Path) -> None:
    inside = Inside(fleet, tmp_path)
    (reported,) = inside.run(placer(fleet, changed)(SPACE, **SHORT))
    assert "have revision" in why_failed(reported)
    assert not any(reported.step.values())
    assert not list((inside.settings.scratch / OBJECTS).iterdir())


def test_other_weights_are_said_rather_than_what_is_wrong_with_the_task(
    fleet: Fleet, changed: BaseModelRef, tmp_path: Path
) -> None:
    (reported,) = Inside(fleet, tmp_path).run(placer(fleet, changed)(SPACE, [{"prompt": "x", "completion": "y"}]))
    assert "have revision" in why_failed(reported)


def one_after_another(inside: Inside, first: Placement, second: Placement, monkeypatch: pytest.MonkeyPatch) -> list[Reported]:
    """Run both; the second is not prepared before the first has ended."""
    ended, use = threading.Event(), ExecutorBase.use

    def on_news(news: ExecutorProgress | PlacementEnded) -> None:
        if isinstance(news, PlacementEnded) and news.placement_id == first.placement_id:
            ended.set()

    def used(base: ExecutorBase, ref: Any, devices: Any, lease: Lease, wanted: Any) -> AbstractContextManager[BaseUse]:
        assert lease.placement_id == first.placement_id or ended.wait(PATIENCE)
        return use(base, ref, devices, lease, wanted)

    inside.on_news = on_news
    monkeypatch.setattr(ExecutorBase, "use", used)
    return inside.run(first, second)


def test_a_base_that_proved_another_is_loaded_anew_for_the_next_placement(
    fleet: Fleet, tiny_base: BaseModelRef, changed: BaseModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, load, given_back = list[int](), RankGroup.load, tiny_base.source

    def loaded(self: RankGroup, *args: Any, **named: Any) -> Any:
        loads.append(len(loads))
        if len(loads) == 2:  # the folder is brought back
            shutil.copytree(given_back, changed.source, dirs_exist_ok=True)
        return load(self, *args, **named)

    monkeypatch.setattr(RankGroup, "load", loaded)
    place = placer(fleet, changed)
    both = place(SPACE, **SHORT), place(SPACE, **SHORT)
    wrong, right = one_after_another(Inside(fleet, tmp_path), *both, monkeypatch)
    assert "have revision" in why_failed(wrong)
    assert len(right.ended) == 1
    assert len(loads) == 2


def test_a_base_that_proved_another_unseen_is_checked_anew(
    fleet: Fleet, tiny_base: BaseModelRef, changed: BaseModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first placement's lease ended before it could be told."""
    place, await_revision, uses = placer(fleet, changed), BaseUse.await_revision, list[BaseUse]()

    def awaited(used: BaseUse) -> None:
        uses.append(used)
        if len(uses) == 1:
            assert used.loaded.base.checked.exception(PATIENCE) is not None
            shutil.copytree(tiny_base.source, changed.source, dirs_exist_ok=True)
            used._lease.release()
            used._lease.check()
        await_revision(used)

    monkeypatch.setattr(BaseUse, "await_revision", awaited)
    both = place(SPACE, **SHORT), place(SPACE, **SHORT)
    _, right = one_after_another(Inside(fleet, tmp_path), *both, monkeypatch)
    assert len(right.ended) == 1
    assert len(uses) == 2


def test_a_base_that_proved_another_is_freed_at_once(
    fleet: Fleet, changed: BaseModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers, load = list[weakref.ref[Trainer]](), RankGroup.load

    def loaded(self: RankGroup, *args: Any, **named: Any) -> LoadedBase:
        made = load(self, *args, **named)
        trainers.append(weakref.ref(made.base.trainer))
        return made

    monkeypatch.setattr(RankGroup, "load", loaded)
    gc.disable()
    try:
        (reported,) = Inside(fleet, tmp_path).run(placer(fleet, changed)(SPACE, **SHORT))
        assert "have revision" in why_failed(reported)
        assert [trainer() for trainer in trainers] == [None]
    finally:
        gc.enable()


def test_rows_are_read_while_it_is_checked_and_the_service_is_told_what_is_waited_for(
    fleet: Fleet, placing: Any, tmp_path: Path, slow_check: threading.Event
) -> None:
    inside = Inside(fleet, tmp_path)
    streams: list[int] = []

    def on_news(news: ExecutorProgress | PlacementEnded) -> None:
        if isinstance(news, ExecutorProgress) and any("still being checked" in text for text in news.loading.values()):
            streams.append(len(list((inside.settings.scratch / "tenants").glob("*/files/*/streams/*"))))
            slow_check.set()

    inside.on_news = on_news
    (reported,) = inside.run(placing(SPACE, **SHORT))
    assert len(reported.ended) == 1
    assert streams[0], "its rows are tokenised"
    assert not [one.loading for one in inside.news if isinstance(one, ExecutorProgress)][-1]


def test_a_lease_that_ends_meanwhile_leaves_the_check_to_the_next_placement(
    fleet: Fleet, changed: BaseModelRef, tmp_path: Path, slow_check: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, inside, check = placer(fleet, changed), Inside(fleet, tmp_path), Lease.check
    first, second = place(SPACE, **SHORT), place(SPACE, **SHORT)
    waited = threading.Event()

    def on_news(news: ExecutorProgress | PlacementEnded) -> None:
        if isinstance(news, ExecutorProgress) and "still being checked" in news.loading.get(first.placement_id, ""):
            waited.set()
        elif isinstance(news, PlacementEnded) and news.placement_id == first.placement_id:
            slow_check.set()

    def checked(lease: Lease) -> None:
        if waited.is_set() and lease.placement_id == first.placement_id:
            lease.release()
        check(lease)

    monkeypatch.setattr(Lease, "check", checked)
    inside.on_news = on_news
    (_, reported) = inside.run(first, second)
    ended = {news.placement_id: news for news in inside.news if isinstance(news, PlacementEnded)}
    assert ended[first.placement_id].detail.startswith("its lease ended")
    assert "have revision" in why_failed(reported)


def test_what_was_read_of_a_base_that_is_damaged_is_freed_at_once(
    tiny_base: BaseModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read = shutil.copytree(tiny_base.source, tmp_path / "base"), list[weakref.ref[torch.Tensor]]()
    made, check, cut = backbone._block, base_loader.check_revision, threading.Event()

    def block(*args: Any) -> Any:
        if read:
            for file in folder.glob("*.safetensors"):
                os.truncate(file, 4096)
            cut.set()
        block = made(*args)
        read.append(weakref.ref(block.w_o))
        return block

    def checked(ref: BaseModelRef) -> None:
        cut.wait()
        check(ref)

    monkeypatch.setattr(backbone, "_block", block)
    monkeypatch.setattr(base_loader, "check_revision", checked)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(base_loader.BaseError, match=r"cannot be read|have revision") as raised:
            base_loader.load_base(tiny_base.model_copy(update={"source": str(folder)}), torch.device("cpu"))
        del raised
        assert [one() for one in read] == [None]
    finally:
        gc.enable()


def test_a_load_that_fails_waits_for_the_check(changed: BaseModelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(*_: object, **__: object) -> None:
        raise base_loader.Crowded("no memory for its weights")

    monkeypatch.setattr(base_loader, "load_trainer", crowded)
    with pytest.raises(base_loader.BaseError, match="have revision"):
        base_loader.load_base(changed, torch.device("cpu"))


def test_a_base_whose_file_is_cut_while_it_is_loaded_costs_its_own_task_alone(
    fleet: Fleet, tiny_base: BaseModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a mapped file that ended the executor, and all tasks on it: it was killed by SIGBUS."""
    folder, read, load, loads = shutil.copytree(tiny_base.source, tmp_path / "base"), in_folder, RankGroup.load, list[int]()

    def cut(source: Path, pinned: bool) -> Any:
        held = read(source, pinned)
        if len(loads) == 1:
            for file in folder.glob("*.safetensors"):
                os.truncate(file, file.stat().st_size // 2)
        return held

    def loaded(self: RankGroup, *args: Any, **named: Any) -> Any:
        loads.append(len(loads))
        if len(loads) == 2:  # the folder is brought back
            shutil.copytree(tiny_base.source, folder, dirs_exist_ok=True)
        return load(self, *args, **named)

    monkeypatch.setattr(backbone, "in_folder", cut)
    monkeypatch.setattr(RankGroup, "load", loaded)
    place = placer(fleet, tiny_base.model_copy(update={"source": str(folder)}))
    both = place(SPACE, **SHORT), place(SPACE, **SHORT)
    failed, trained = one_after_another(Inside(fleet, tmp_path / "worker"), *both, monkeypatch)
    why = why_failed(failed)
    assert "have revision" in why or "safetensors cannot be read: it ends" in why, "the revision is compared beside"
    assert [event.kind for event in trained.ended.values()] == ["job_completed"]
