"""A base in fp8 on the plain path, where its products are emulated: packed and alone, near bf16, held in half of its bytes."""

import pytest
import torch
from grouped_lora.base.fp8 import Fp8Weight

from tests.worker.model import tiny
from tests.worker.model.test_nf4 import CONFIGS, _same, _train
from worker.model.backbone import Backbone
from worker.model.base_weight_reader import weight_bytes


@pytest.mark.parametrize("name", ["llama_biases", "qwen3", "gemma2"])
def test_training_packed_is_training_alone_bit_for_bit_and_near_the_plain_base(name: str) -> None:
    model = tiny.model(CONFIGS[name])
    backbone = Backbone.of(model, precision="fp8")
    packed, plain = _train(backbone), _train(Backbone.of(model))
    assert _same(packed[2], _train(backbone, (2,))[2])
    for job in packed:
        assert packed[job][0] != plain[job][0], "the codes have taken something off"
        assert packed[job][0][0] == pytest.approx(plain[job][0][0], rel=0.05), "the same weights; later steps part"
        assert packed[job][0][-1] < packed[job][0][0]


def test_what_is_kept_is_the_codes_and_a_scale_a_row(tmp_path) -> None:
    model = tiny.model(CONFIGS["llama3_rope"])
    model.save_pretrained(tmp_path)
    backbone = Backbone.load(tmp_path, precision="fp8")
    matrices = [w for layer in backbone.layers for w in vars(layer).values() if isinstance(w, Fp8Weight)]
    assert len(matrices) == 4 * len(backbone.layers)
    for weight in matrices:
        assert sum(tensor.nbytes for tensor in weight.tensors()) == weight.shape.numel() + 4 * weight.shape[0]
    held = sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in backbone.tensors()}.values())
    assert weight_bytes(tmp_path, torch.float32, "fp8") == held
