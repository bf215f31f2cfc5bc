"""Starting from an adapter: what was learned is there from the first step, and what does not fit is refused by name."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from contract.job_config import JobConfig
from contract.messages.adapter_manifest import AdapterFile
from contract.messages.placement_messages import Placement, WarmStartRef
from contract.messages.report_messages import BaseEvaluated, PlacementFailed
from tests.worker.inside import Inside
from tests.worker.model import tiny
from worker.adapters.job_checkpoint import UnreadableWeights
from worker.adapters.location_types import AdapterSpec
from worker.adapters.peft_export import export_peft
from worker.adapters.warm_start import WarmStartError, read_peft
from worker.model.arena import AdapterState, Arena
from worker.model.backbone import Backbone

pytestmark = pytest.mark.usefixtures("measured_once")

CALM = {"policy": "none", "eval_every": 3}
SPACE = {"learning_rate": [3e-3], "rank": [4], "alpha": [8], "batch_size": [4]}
START = {"adapter_id": "adapter_x"}


def config(**changes: object) -> JobConfig:
    return JobConfig.model_validate({"learning_rate": 1e-3, "rank": 4, "alpha": 8, "batch_size": 1, "seed": 0, **changes})


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena(Backbone.of(tiny.model(tiny.configs()["llama"])).targets, 8)


@pytest.fixture
def folder(arena, tmp_path):
    """Files of a trained-looking adapter, by name."""
    rows = torch.randn(4, arena.layout.width, generator=torch.Generator().manual_seed(3))
    paths = export_peft(tmp_path, arena.layout.targets, arena.layout.split(rows), config=config(), base_model="b")
    return {path.name: path for path in paths}


def rewrite(folder, settings=None, tensors=None) -> None:
    path = folder["adapter_config.json"]
    path.write_text(json.dumps(json.loads(path.read_text()) | (settings or {})))
    if tensors is not None:
        save_file(tensors(load_file(folder["adapter_model.safetensors"])), folder["adapter_model.safetensors"])


def test_what_was_exported_is_read_back(arena, folder):
    start = read_peft(folder, arena.layout)
    assert (start.rank, start.scale) == (4, 2.0)
    slot = arena.attach(4, 8.0)
    arena.restore(slot, AdapterState(start.weights))
    exported = load_file(folder["adapter_model.safetensors"])
    for name, (a, b) in arena.weights(slot).items():
        assert torch.equal(a, exported[f"base_model.model.{name}.lora_A.weight"])
        assert torch.equal(b, exported[f"base_model.model.{name}.lora_B.weight"])
    arena.detach(slot)


@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_under_another_scale_the_adapter_does_the_same(arena, folder, scale):
    start = read_peft(folder, arena.layout)
    fresh = torch.randn(4, arena.layout.width)
    start.write_onto(fresh, scale)
    made = arena.layout.split(fresh)
    for name, (a, b) in arena.layout.split(start.weights).items():
        torch.testing.assert_close(scale * made[name][1] @ made[name][0], 2.0 * b @ a)


def test_modules_that_the_start_has_not_got_keep_their_first_weights(arena, folder):
    rewrite(folder, tensors=lambda all: {name: t for name, t in all.items() if "mlp" not in name})
    start = read_peft(folder, arena.layout)
    assert start.modules == ("q_proj", "k_proj", "v_proj", "o_proj")
    fresh = torch.randn(4, arena.layout.width)
    made = fresh.clone()
    start.write_onto(made, 2.0)
    made = arena.layout.split(made)
    for name, (a, b) in arena.layout.split(fresh).items():
        assert torch.equal(made[name][0], a) == torch.equal(made[name][1], b) == ("mlp" in name)
    start.check(config())
    with pytest.raises(WarmStartError, match="has matrices for k_proj, o_proj, which a job's target_modules leave out"):
        start.check(config(target_modules=["q_proj", "v_proj"]))
    with pytest.raises(WarmStartError, match="has rank 4, but a job asks for rank 2"):
        start.check(config(rank=2))


def test_a_job_of_a_higher_rank_begins_with_what_the_adapter_does(arena, folder):
    start = read_peft(folder, arena.layout)
    start.check(config(rank=6))
    fresh = AdapterSpec.of(config(rank=6), start).first_weights(arena.layout)
    own, made = arena.layout.split(start.weights), arena.layout.split(fresh)
    for name, (a, b) in made.items():
        assert a[4:].ne(0).any(), "the ranks that it lacks can learn"
        torch.testing.assert_close(config(rank=6).plain_alpha / 6 * b @ a, start.scale * own[name][1] @ own[name][0])


A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
WRONG = [
    ({"use_dora": True}, None, "use_dora = True"),
    ({"rank_pattern": {"q_proj": 8}}, None, "rank_pattern"),
    ({"init_lora_weights": "pissa"}, None, "path_initial_model_for_weight_conversion"),
    ({"use_rslora": "no"}, None, "must be true or false"),
    ({"peft_type": "IA3"}, None, "peft_type = 'IA3'"),
    ({"r": 0}, None, "r = 0"),
    ({"r": True}, None, "r = True"),
    ({"lora_alpha": "x"}, None, "lora_alpha = 'x'"),
    ({"r": 8}, None, r"of shape \(4, 60\); the base and its rank ask for \(8, 60\)"),
    ({}, lambda all: {n: t for n, t in all.items() if n != A}, f"lacks {A}"),
    (
        {},
        lambda all: {n: t for n, t in all.items() if "layers.0.self_attn.q_proj" not in n},
        "lacks model.layers.0.self_attn.q_proj",
    ),
    ({}, lambda all: all | {A: all[A][:, :5].contiguous()}, r"of shape \(4, 5\)"),
    ({}, lambda all: all | {A: all[A] * float("nan")}, "not finite"),
    ({}, lambda all: all | {"x.lora_A.weight": all[A].clone()}, "holds x.lora_A.weight, which is no matrix of the base"),
    ({}, lambda all: {}, "holds no matrix"),
]


@pytest.mark.parametrize(("settings", "tensors", "says"), WRONG, ids=[says for *_, says in WRONG])
def test_what_cannot_be_gone_on_with_is_named(arena, folder, settings, tensors, says):
    rewrite(folder, settings, tensors)
    with pytest.raises(WarmStartError, match=says):
        read_peft(folder, arena.layout)


@pytest.mark.parametrize("alpha", [1e-300, 5e-324])
def test_a_job_whose_scale_would_make_its_numbers_infinite_is_refused(arena, folder, alpha):
    start = read_peft(folder, arena.layout)
    start.check(config(alpha=1e-3))
    with pytest.raises(WarmStartError, match=r"set search_space\.alpha nearer"):
        start.check(config(alpha=alpha))


def test_a_pickle_is_never_read(arena, folder):
    del folder["adapter_model.safetensors"]
    with pytest.raises(WarmStartError, match="only safetensors"):
        read_peft(folder | {"adapter_model.bin": folder["adapter_config.json"]}, arena.layout)
    folder["adapter_config.json"].write_text("{")
    with pytest.raises(WarmStartError, match="cannot be read"):
        read_peft(folder | {"adapter_model.safetensors": folder["adapter_config.json"]}, arena.layout)


def test_a_file_that_is_cut_while_it_is_read_ends_no_process(arena, folder, monkeypatch):
    """Of a mapped file that did: it was killed by SIGBUS."""
    path, empty = folder["adapter_model.safetensors"], torch.empty

    def cut(*args, **kwargs):
        os.truncate(path, path.stat().st_size - 1)
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", cut)
    with pytest.raises(WarmStartError, match=r"cannot be read: it ends .* bytes early"):
        read_peft(folder, arena.layout)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_one_that_the_disk_does_not_give_back_is_no_fault_of_the_adapter(arena, folder, tmp_path, name):
    with pytest.raises(UnreadableWeights, match="MOTET_WORKER_DIR cannot be read"):
        read_peft(folder | {name: tmp_path}, arena.layout)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_it_may_be_stored_in_any_precision(arena, folder, dtype):
    path = folder["adapter_model.safetensors"]
    stored = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file({name: tensor.float() for name, tensor in stored.items()}, path)
    plain = read_peft(folder, arena.layout).weights
    save_file(stored, path)
    assert torch.equal(read_peft(folder, arena.layout).weights, plain)


def started_from(fleet, placement: Placement, files: list[AdapterFile]) -> Placement:
    assert all(file.sha256 in fleet.objects for file in files)
    return placement.model_copy(update={"warm_start": WarmStartRef(adapter_id="adapter_x", files=files)})


def test_a_job_goes_on_where_another_ended(fleet, placing, tmp_path):
    whole = CALM | {"max_evaluation_share": None}  # so that a curve is of the rows of a full evaluation
    (first,) = Inside(fleet, tmp_path / "first").run(placing(SPACE, early_exit=whole, training={"epochs": 3}))
    files, best = first.manifests[0].files, first.ended[0].best_val_loss
    space = SPACE | {"alpha": [8, 32], "learning_rate": [1e-9]}
    placement = started_from(fleet, placing(space, early_exit=whole, warm_start=START), files)
    (second,) = Inside(fleet, tmp_path / "second").run(placement)
    for job in (0, 1):
        vals = second.curves[job, "val_loss"]
        assert vals[3] == pytest.approx(best, abs=1e-5), "what was learned is there, whatever the scale"
    (base,) = second.of(BaseEvaluated)
    assert base.val_loss > best + 0.1


def test_an_adapter_that_does_not_fit_the_jobs_fails_with_a_reason(fleet, placing, tmp_path):
    (first,) = Inside(fleet, tmp_path / "first").run(placing(SPACE, early_exit=CALM))
    placement = placing(SPACE | {"rank": [2]}, early_exit=CALM, warm_start=START)
    (refused,) = Inside(fleet, tmp_path / "second").run(started_from(fleet, placement, first.manifests[0].files))
    (failed,) = refused.of(PlacementFailed)
    assert failed.error.startswith("warm_start.adapter_id adapter_x: has rank 4, but a job asks for rank 2")
