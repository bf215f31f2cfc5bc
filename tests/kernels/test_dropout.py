"""Dropout's counter: what the mask depends on, how often it keeps, and where it must not repeat."""

import numpy as np
import pytest
import torch
from grouped_lora import Span
from grouped_lora.dropout import keep_mask, threshold, token_keys

KEYS = token_keys(seed=5, step=3, samples=[0, 1], lengths=[300, 200])


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_it_keeps_as_often_as_it_should_in_every_row_and_column(p: float) -> None:
    mask = keep_mask(KEYS, 3, 2000, threshold(p)).double()
    spread = (p * (1 - p)) ** 0.5
    assert abs(mask.mean() - (1 - p)) < 5 * spread / mask.numel() ** 0.5
    assert ((mask.mean(1) - (1 - p)).abs() < 6 * spread / 2000**0.5).all()
    assert ((mask.mean(0) - (1 - p)).abs() < 6 * spread / 500**0.5).all()


def test_every_part_of_the_counter_draws_anew_and_none_is_correlated() -> None:
    masks = [keep_mask(KEYS, 3, 400, threshold(0.5))]
    for seed, step, samples in ((6, 3, [0, 1]), (5 + 2**32, 3, [0, 1]), (5, 4, [0, 1]), (5, 3, [2, 3])):
        masks.append(keep_mask(token_keys(seed, step, samples, [300, 200]), 3, 400, threshold(0.5)))
    masks += [keep_mask(KEYS, 4, 400, threshold(0.5)), masks[0].roll(1, 0), masks[0].roll(1, 1)]
    signs = torch.stack([mask.flatten() for mask in masks]).double() * 2 - 1
    correlation = signs @ signs.T / signs.shape[1] - torch.eye(len(masks))
    assert correlation.abs().max() < 5 / signs.shape[1] ** 0.5


def test_a_token_has_its_own_key_wherever_its_row_lies() -> None:
    assert np.array_equal(token_keys(5, 3, [1], [200]), KEYS[300:])
    assert len(np.unique(KEYS)) == len(KEYS)
    assert len(token_keys(5, 3, [], [])) == 0


def test_nothing_is_dropped_at_zero_and_one_is_refused() -> None:
    assert keep_mask(KEYS, 0, 50, threshold(0.0)).all()
    with pytest.raises(ValueError, match="dropout is 1"):
        threshold(1.0)
    with pytest.raises(ValueError, match=r"dropout is -0\.1"):
        Span(0, 1, 0, 8, 1.0, -0.1)
