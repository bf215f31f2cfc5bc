"""Step times: learned from measured steps, against a plain reference of the same least squares, and what they are used for."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.policy.step_time import StepLoad, StepModel, StepTimes

TRUE = StepModel(4e-3, 4e-6, 5e-6, 1e-5)
LOADS = st.builds(StepLoad, st.integers(1, 4), st.integers(50, 40000), st.integers(8, 2048), st.integers(1, 32))


def learned(loads, true=TRUE, noise=0.0, seed=0) -> StepTimes:
    draw, times = random.Random(seed), StepTimes.empty()
    for load in loads:
        times = times.learned(load, true.seconds(load) * (1 + noise * draw.uniform(-1, 1)))
    return times


def varied(count: int, seed: int = 0) -> list[StepLoad]:
    draw = random.Random(seed)
    loads = []
    for _ in range(count):
        jobs = draw.randint(1, 32)
        tokens = sum(draw.randint(100, 1500) for _ in range(jobs))
        loads.append(StepLoad(1 + tokens // 16384, tokens, sum(draw.choice((8, 16, 32, 64)) for _ in range(jobs)), jobs))
    return loads


def test_what_was_never_measured_is_predicted_from_what_was():
    model = learned(varied(300), noise=0.05).model()
    for load in varied(50, seed=1):
        assert model.seconds(load) == pytest.approx(TRUE.seconds(load), rel=0.05)


def test_nothing_is_said_before_it_has_seen_enough():
    assert StepTimes.empty().model() is None
    assert learned(varied(7)).model() is None
    assert learned(varied(8)).model() is not None


def test_what_others_have_measured_is_enough():
    """The count is the larger of both: a device without steps of its own is predicted from the others'."""
    others = learned(varied(300))
    model = StepTimes.empty().beside(others, 0.1).model()
    for load in varied(20, seed=1):
        assert model.seconds(load) == pytest.approx(TRUE.seconds(load), rel=0.05)
    assert others.beside(StepTimes.empty(), 0.1).model() is not None


def test_one_load_alone_is_predicted_as_measured_and_half_of_it_at_half_to_all_of_its_time():
    load = StepLoad(1, 12000, 256, 16)
    model = learned([load] * 100).model()
    whole = TRUE.seconds(load)
    assert model.seconds(load) == pytest.approx(whole, rel=0.01)
    half = model.seconds(StepLoad(1, 6000, 128, 8))
    assert 0.5 * whole < half < whole


def test_a_device_that_slows_down_is_believed_within_some_hundred_steps():
    times = learned(varied(500))
    slow = StepModel(8e-3, 8e-6, 1e-5, 2e-5)
    for load in varied(400, seed=2):
        times = times.learned(load, slow.seconds(load))
    load = varied(1, seed=3)[0]
    assert times.model().seconds(load) == pytest.approx(slow.seconds(load), rel=0.05)


@given(st.lists(st.tuples(LOADS, st.floats(1e-3, 1.0)), min_size=10, max_size=40))
def test_the_model_is_the_least_squares_of_a_reference(steps):
    """Coordinate descent over the weighted rows themselves, with the same ridge, in double precision."""
    times = StepTimes.empty()
    for load, seconds in steps:
        times = times.learned(load, seconds)
    model = times.model()
    weights = 0.99 ** (np.arange(len(steps))[::-1] / 2)
    rows = np.array([load.terms / seconds for load, seconds in steps]) * weights[:, None]
    scale = np.sqrt((rows**2).sum(0))
    padded = np.vstack([rows / scale, np.sqrt(1e-3) * np.eye(4)])
    wanted = np.concatenate([weights, np.zeros(4)])
    reference = np.zeros(4)
    for at in [0, 1, 2, 3] * 2000:
        column = padded[:, at]
        rest = wanted - padded @ reference + column * reference[at]
        reference[at] = max(0.0, float(column @ rest) / float(column @ column))
    got = np.array([model.per_pass, model.per_token, model.per_row, model.per_job]) * scale
    assert (got >= 0).all()
    loss = [float(np.sum((padded @ x - wanted) ** 2)) for x in (got, reference)]
    assert loss[0] <= loss[1] * (1 + 1e-6) + 1e-9


def test_a_step_takes_time():
    with pytest.raises(ValueError, match="took 0"):
        StepTimes.empty().learned(StepLoad(1, 1, 1, 1), 0.0)


def test_a_pass_is_as_long_as_throughput_rewards():
    model = StepModel(per_pass=4e-3, per_token=4e-6, per_row=0, per_job=0)
    tokens = model.tokens_for_throughput_share(0.95, 10**6)
    assert tokens == 19000
    assert tokens / model.seconds(StepLoad(1, tokens, 0, 0)) == pytest.approx(0.95 / 4e-6, rel=0.01)
    assert model.tokens_for_throughput_share(0.95, 16384) == 16384
    assert StepModel(4e-3, 0.0, 0, 0).tokens_for_throughput_share(0.95, 16384) == 16384, (
        "a token costs nothing that was measured"
    )
    assert StepModel(0.0, 4e-6, 0, 0).tokens_for_throughput_share(0.95, 16384) == 0
