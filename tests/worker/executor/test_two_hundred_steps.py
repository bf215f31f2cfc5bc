"""A run of 200 steps: packed is solo to the bit, and ours is PEFT's with PyTorch's AdamW within 1e-5 at every step."""

import numpy as np
import peft
import pytest
import torch
from torch import Tensor

from contract.job_config import MODULES, JobConfig
from tests.worker.model import tiny
from worker.data.dataset import Order
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.example import Example
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer
from worker.model.row_optimizer import RowUpdate

ROWS = 48
TOLERANCE = 1e-5


def job(**changes: object) -> JobConfig:
    plain = {"learning_rate": 2e-3, "rank": 6, "alpha": 12, "batch_size": 4, "seed": 1}
    return JobConfig.model_validate(plain | changes)


JOBS = [
    job(),
    job(schedule="cosine", lr_warmup_ratio=0.1, batch_size=2, weight_decay=0.1, seed=2),
    job(rslora=True, alpha=4, target_modules=["q_proj", "v_proj", "down_proj"], schedule="linear", rank=16, seed=3),
]


def rows() -> list[Example]:
    """Rows with a pattern to learn: the second half repeats the first."""
    made = []
    draw = np.random.default_rng(5)
    for _ in range(ROWS):
        half = draw.integers(0, 24, draw.integers(5, 14)).astype(np.int32)
        made.append(Example(np.concatenate([half, half]), np.arange(2 * len(half)) >= len(half)))
    return made


def ours(configs: list[JobConfig], steps: int, data: list[Example]) -> list[list[float]]:
    """Losses by job, all packed on one base."""
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    trainer = Trainer(backbone, Arena(backbone.targets, 128))
    slots = [trainer.arena.attach(config.rank, config.plain_alpha) for config in configs]
    for config, slot in zip(configs, slots, strict=True):
        trainer.init_adapter(slot, config.seed, config.target_modules)
    orders = [Order(len(data), config.batch_size, config.seed) for config in configs]
    losses: list[list[float]] = [[] for _ in configs]
    for step in range(steps):
        batches = [[data[row] for row in order.batch(step)] for order in orders]
        segments = [
            Segment(slot, batch, 1 / sum(example.labels for example in batch))
            for slot, batch in zip(slots, batches, strict=True)
        ]
        for found, loss in zip(losses, trainer.train(segments), strict=True):
            found.append(float(loss.total) / loss.labels)
        trainer.update(
            [
                RowUpdate(slot, config.rate_at(step, steps), config.weight_decay, step + 1, 1.0)
                for config, slot in zip(configs, slots, strict=True)
            ]
        )
    return losses


def pefts(config: JobConfig, steps: int, data: list[Example]) -> list[float]:
    """The same job by PEFT, row by row, with PyTorch's own optimizer and clipping."""
    asked = peft.LoraConfig(
        r=config.rank, lora_alpha=config.alpha, target_modules=list(config.target_modules), use_rslora=config.rslora
    )
    model = peft.get_peft_model(tiny.model(tiny.configs()["llama"]), asked)
    _begin_like_ours(model, config)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=config.weight_decay)
    order, losses = Order(len(data), config.batch_size, config.seed), []
    for step in range(steps):
        batch = [data[row] for row in order.batch(step)]
        for group in optimizer.param_groups:
            group["lr"] = config.rate_at(step, steps)
        total: Tensor = sum(tiny.label_nll(model(tiny.token_rows(row)).logits, row) for row in batch)
        loss = total / sum(row.labels for row in batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _begin_like_ours(model: peft.PeftModel, config: JobConfig) -> None:
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    trainer = Trainer(backbone, Arena(backbone.targets, 16))
    slot = trainer.arena.attach(config.rank, config.plain_alpha)
    trainer.init_adapter(slot, config.seed, config.target_modules)
    for name, (a, b) in trainer.arena.weights(slot).items():
        if name.rsplit(".", 1)[-1] in config.target_modules:
            layer = model.base_model.model.get_submodule(name)
            layer.lora_A["default"].weight.data.copy_(a)
            layer.lora_B["default"].weight.data.copy_(b)


@pytest.mark.parametrize("steps", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_packed_is_solo_and_ours_is_pefts(steps: int) -> None:
    data = rows()
    packed = ours(JOBS, steps, data)
    for config, losses in zip(JOBS, packed, strict=True):
        assert ours([config], steps, data) == [losses], "to the bit"
        theirs = pefts(config, steps, data)
        worst = max(abs(x - y) for x, y in zip(losses, theirs, strict=True))
        assert worst <= TOLERANCE, f"{worst} for {config}"
        assert losses[-1] < losses[0], "something was learned"
    assert set(JOBS[0].target_modules) == set(MODULES)
