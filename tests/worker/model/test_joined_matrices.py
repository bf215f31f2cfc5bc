"""A base whose files join several matrices: what is read of them, row by row, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Phi3Config

from tests.worker.model import tiny
from worker.model.backbone import Backbone, targets_of
from worker.model.base_weight_reader import Weights, at_hand, in_folder, shapes_of
from worker.model.families import UnsupportedModelError, family_of
from worker.model.joined_matrices import stored_shapes, taken_apart

CONFIG = tiny.configs()["phi3_part"]


def test_parts_are_the_rows_of_the_joined_matrix_in_any_slices() -> None:
    state = tiny.model(CONFIG).state_dict()
    apart = Weights(taken_apart(CONFIG, at_hand(state)), shapes_of(family_of(CONFIG), CONFIG))
    for target in targets_of(CONFIG):
        whole, name = state[f"{target.stored_name}.weight"], f"{target.name}.weight"
        places = torch.arange(target.out_features) if target.stored is None else target.stored.places(target.out_features)
        assert torch.equal(apart[name], whole[places])
        for first, stop in ((0, 0), (0, 1), (7, 13), (target.out_features - 1, target.out_features)):
            assert torch.equal(apart.rows(name, first, stop), whole[places][first:stop])


def test_parts_cover_the_joined_matrix_once() -> None:
    for layer in range(CONFIG.num_hidden_layers):
        for name in (f"model.layers.{layer}.self_attn.qkv_proj", f"model.layers.{layer}.mlp.gate_up_proj"):
            parts = [target for target in targets_of(CONFIG) if target.stored_name == name]
            places = [part.stored.places(part.out_features) for part in parts if part.stored is not None]
            assert torch.equal(torch.cat(places).sort().values, torch.arange(sum(part.out_features for part in parts)))


def test_the_names_and_shapes_are_those_of_transformers() -> None:
    state = tiny.model(CONFIG).state_dict()
    assert stored_shapes(CONFIG, shapes_of(family_of(CONFIG), CONFIG)) == {name: one.shape for name, one in state.items()}


def test_a_joined_matrix_that_is_missing_is_named(tmp_path: Path) -> None:
    reference = tiny.model(CONFIG)
    state = {name: one for name, one in reference.state_dict().items() if "layers.1.self_attn.qkv_proj" not in name}
    reference.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(UnsupportedModelError, match=r"model\.layers\.1\.self_attn\.qkv_proj\.weight \[100, 60\]"):
        taken_apart(CONFIG, in_folder(tmp_path))


def test_longrope_goes_as_far_as_it_was_trained_at() -> None:
    assert (CONFIG.max_position_embeddings, Backbone.of(tiny.model(CONFIG)).max_positions) == (256, 128)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resid_pdrop": 0.1}, "resid_pdrop 0.1 is not supported; what works: 0"),
        ({"embd_pdrop": 0.1}, "embd_pdrop 0.1 is not supported; what works: 0"),
        ({"rope_parameters": {"rope_theta": 9.0, "rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary"),
    ],
)
def test_what_phi3_may_say_and_is_not_run_is_refused(change: dict[str, Any], message: str) -> None:
    said = {
        "vocab_size": 131,
        "hidden_size": 60,
        "num_hidden_layers": 1,
        "intermediate_size": 77,
        "max_position_embeddings": 64,
    }
    config = Phi3Config(**said, num_attention_heads=6, num_key_value_heads=2, eos_token_id=1, pad_token_id=0, **change)
    with pytest.raises(UnsupportedModelError, match=message):
        Backbone.of(tiny.model(config))
