"""DPO in numbers: against autograd in float64, at its landmarks, and where something is not finite."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.replicas.dpo_loss import pair_error, preference_loss

LOG_P = st.floats(-400, 0)
PAIRS = st.lists(st.tuples(LOG_P, LOG_P, LOG_P, LOG_P), min_size=1, max_size=6)


@given(st.floats(0.01, 5), PAIRS)
def test_loss_and_weights_are_those_of_autograd(beta, pairs):
    nll = torch.tensor([[-c, -r] for c, r, _, _ in pairs], dtype=torch.float64, requires_grad=True)
    base = torch.tensor([[c, r] for _, _, c, r in pairs], dtype=torch.float64)
    rewards = beta * (-nll - base)
    margins = rewards[:, 0] - rewards[:, 1]
    loss = -torch.nn.functional.logsigmoid(margins).mean()
    loss.backward()
    said = preference_loss(beta, (-nll).flatten().tolist(), base.flatten().tolist())
    assert said.loss == pytest.approx(loss.item(), rel=1e-12, abs=1e-300)
    assert said.loss_weights == pytest.approx(nll.grad.flatten().tolist(), rel=1e-9, abs=1e-300)
    assert said.margin == pytest.approx(margins.mean().item(), rel=1e-12, abs=1e-12)
    assert said.accuracy == (margins > 0).double().mean().item()


def test_against_itself_the_loss_is_ln_2_and_nothing_is_preferred():
    said = preference_loss(0.1, [-5.0, -7.0, -1.0, -2.0], [-5.0, -7.0, -1.0, -2.0])
    assert (said.loss, said.margin, said.accuracy) == (math.log(2), 0, 0)
    assert said.loss_weights == [0.025, -0.025, 0.025, -0.025]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(broken):
    assert math.isnan(preference_loss(0.1, [-1.0, broken], [-1.0, -1.0]).loss)


def test_equal_rewards_are_half_an_error():
    assert [pair_error(margin) for margin in (-1e-9, 0.0, 1e-9)] == [1.0, 0.5, 0.0]
