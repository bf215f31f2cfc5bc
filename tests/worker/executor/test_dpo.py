"""DPO by the executor: its landmarks, its gradient, its reference computed once, and jobs that do not touch each other."""

import math
from collections.abc import Callable

import pytest
import torch

from contract.messages.placement_messages import Placement
from contract.messages.report_messages import BaseEvaluated
from contract.task_spec import Objective
from tests.worker.corpus import PAIRS
from tests.worker.inside import Inside
from tests.worker.model import tiny
from worker.data.dataset import TokenRows
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer
from worker.replicas import dpo_reference
from worker.replicas.adapter_sequences import AdapterSequences
from worker.replicas.dpo_loss import preference_loss
from worker.replicas.validation_pass import EvaluationRequest, evaluate, log_probabilities

pytestmark = pytest.mark.usefixtures("measured_once")

DPO = Objective(type="dpo").model_dump()
CALM = {"policy": "none", "eval_every": 6}


def dpo(placing: Callable[..., Placement], space: dict, **more: object) -> Placement:
    return placing(space, PAIRS, objective=DPO, early_exit=CALM, **more)


def test_a_search_under_dpo_learns_what_is_preferred(fleet, placing, tmp_path, monkeypatch):
    computed = []
    real = dpo_reference.log_probability_passes
    monkeypatch.setattr(dpo_reference, "log_probability_passes", lambda *given: computed.append(given) or real(*given))
    space = {"learning_rate": [1e-2], "rank": [8], "batch_size": [4], "beta": [0.1, 0.5]}
    (reported,) = Inside(fleet, tmp_path).run(dpo(placing, space, training={"epochs": 2}))
    assert {event.kind for event in reported.ended.values()} == {"job_completed"}
    for job in (0, 1):
        assert reported.curves[job, "train_loss"][1] == pytest.approx(math.log(2), abs=1e-6), "at first it is its reference"
        assert reported.curves[job, "train_margin"][1] == pytest.approx(0, abs=1e-6)
        val = reported.curves[job, "val_loss"]
        assert val[max(val)] < 0.5
        assert reported.curves[job, "val_accuracy"][max(val)] == 1
        assert reported.curves[job, "val_margin"][max(val)] > 0.5
        assert list(val) == list(reported.curves[job, "val_margin"]) == list(reported.curves[job, "val_accuracy"])
    (base,) = reported.of(BaseEvaluated)
    assert base.val_loss == pytest.approx(math.log(2))
    assert len(computed) == 2, "once for both jobs: the training rows and the validation rows"

    (again,) = Inside(fleet, tmp_path).run(dpo(placing, space, training={"max_steps": 4}))
    for job in (0, 1):
        assert again.curves[job, "train_loss"].items() <= reported.curves[job, "train_loss"].items()
    assert len(computed) == 2, "and never again on this node"


def test_jobs_under_dpo_do_not_touch_each_other(fleet, placing, tmp_path):
    space = {"method": "list", "jobs": [{"learning_rate": rate, "rank": 4, "dropout": 0.1} for rate in (1e-3, 1e6, 3e-3)]}
    short = {"max_steps": 8}
    (packed,) = Inside(fleet, tmp_path / "packed").run(dpo(placing, space, training=short))
    assert packed.ended[1].kind in ("job_exited", "job_completed")
    for job, rate in ((0, 1e-3), (2, 3e-3)):
        alone = {"learning_rate": [rate], "rank": [4], "dropout": [0.1]}
        (solo,) = Inside(fleet, tmp_path / f"solo{job}").run(dpo(placing, alone, training=short))
        for series in ("train_loss", "val_loss", "train_margin", "val_accuracy"):
            assert solo.curves[0, series] == packed.curves[job, series]
        assert {f.path: f.sha256 for f in solo.manifests[0].files} == {f.path: f.sha256 for f in packed.manifests[job].files}


def test_the_gradient_is_that_of_transformers_and_autograd():
    """The loss of equation 7, with the model's own logits and LoRA written out, in float64 but for its norms and rotary."""
    model = tiny.model(tiny.configs()["qwen3"], torch.float64)
    backbone = Backbone.of(model)
    trainer = Trainer(backbone, Arena(backbone.targets, 8, dtype=torch.float64))
    slot = trainer.arena.attach(3, 6.0)
    examples = tiny.examples([9, 14, 11, 8])
    tiny.randomise(trainer, [Segment(slot, examples)])
    read = AdapterSequences(slot, examples, [len(e.tokens) - 1 for e in examples])
    base = log_probabilities(trainer, {0: AdapterSequences(None, examples, read.lengths)}, 999, lambda: None)[0]
    said = preference_loss(0.3, log_probabilities(trainer, {0: read}, 999, lambda: None)[0], base)
    trainer.train([Segment(slot, [e], w) for e, w in zip(examples, said.loss_weights, strict=True)])

    rows = trainer.arena.master[slot.used].clone().requires_grad_(True)
    factors = trainer.arena.layout.split(rows)
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda _, x, y, a=a, b=b: y + slot.scale * (x[0] @ a.t()) @ b.t())
        for name, (a, b) in factors.items()
    ]
    log_p = [-tiny.label_nll(model(tiny.token_rows(e)).logits, e) for e in examples]
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        plain = [-tiny.label_nll(model(tiny.token_rows(e)).logits, e) for e in examples]
    rewards = [0.3 * (own - ref) for own, ref in zip(log_p, plain, strict=True)]
    loss = -torch.nn.functional.logsigmoid(torch.stack([rewards[0] - rewards[1], rewards[2] - rewards[3]])).mean()
    loss.backward()
    assert said.loss == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(trainer.arena.grad[slot.used], rows.grad, rtol=1e-4, atol=1e-6)

    examined = dict(evaluate(trainer, {0: EvaluationRequest(slot, TokenRows(examples, 2), 0.3, base)}, 999, lambda: None))[0]
    assert examined.loss == pytest.approx(loss.item(), rel=1e-6)
