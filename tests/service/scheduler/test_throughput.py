"""Step times: the roofline's two sides, and what measurements change of it, near and far."""

from dataclasses import replace

import pytest

from service.scheduler.core.gpu_types import hardware
from service.scheduler.estimate.throughput import (
    ProfileKey,
    StepTimeProfile,
    ThroughputModel,
    key_of,
    measured,
    relevant,
    roofline,
    speed,
)

MODEL = ThroughputModel(8_000_000_000, 16_000_000_000, hardware("NVIDIA H100 80GB HBM3"))


def profiled(*seen: tuple[float, float], times: int = 4) -> ThroughputModel:
    taken = []
    for tokens, seconds in seen:
        profile = None
        for _ in range(times):
            profile = measured(profile, tokens, seconds)
        taken.append((key_of("m", "bf16", "h100", tokens), profile))
    return replace(MODEL, profiles=tuple(taken))


def test_a_small_step_is_bound_by_bytes_and_a_large_one_by_flops() -> None:
    assert roofline(MODEL, 1) == roofline(MODEL, 64)
    assert roofline(MODEL, 65536) == pytest.approx(2 * roofline(MODEL, 32768), rel=0.02)


def test_known_types_differ_and_an_unknown_one_is_an_accelerator() -> None:
    assert hardware("cpu").flops < hardware("Tesla T4").flops < hardware("NVIDIA A100-SXM4-80GB").flops
    assert hardware("NVIDIA A10G") != hardware("NVIDIA A100-SXM4-80GB")
    assert hardware("Something new").flops > hardware("cpu").flops


def test_a_measured_size_is_believed_and_its_neighbours_follow() -> None:
    model = profiled((4096, 3 * roofline(MODEL, 4096)))
    assert speed(model, 4096).seconds == pytest.approx(3 * roofline(MODEL, 4096))
    assert speed(model, 8192).seconds == pytest.approx(3 * roofline(MODEL, 8192))
    assert speed(model, 4096).deviation < speed(model, 32768).deviation <= speed(MODEL, 4096).deviation


def test_between_two_measurements_the_nearer_one_counts_more() -> None:
    model = profiled((1024, 2 * roofline(MODEL, 1024)), (16384, 8 * roofline(MODEL, 16384)))
    ratios = [speed(model, tokens).seconds / roofline(MODEL, tokens) for tokens in (1024, 4096, 16384)]
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(2, rel=0.1)
    assert ratios[2] == pytest.approx(8, rel=0.1)


def test_another_width_is_believed_to_be_as_fast_until_it_was_measured() -> None:
    """And the further away, the less surely. Once measured, it says little of the others."""
    narrow = profiled((4096, 3 * roofline(MODEL, 4096)))
    found = [speed(narrow, 4096, width=width) for width in (1, 2, 8)]
    assert [each.seconds for each in found] == [found[0].seconds] * 3
    assert found[0].deviation < found[1].deviation < found[2].deviation <= speed(MODEL, 4096).deviation
    slow = measured(None, 4096, 9 * roofline(MODEL, 4096))
    both = replace(narrow, profiles=(*narrow.profiles, *[(key_of("m", "bf16", "h100", 4096, width=2), slow)] * 4))
    ratios = [speed(both, 4096, width=width).seconds / roofline(MODEL, 4096) for width in (1, 2, 4)]
    assert ratios == [pytest.approx(3, rel=0.1), pytest.approx(9, rel=0.1), pytest.approx(9, rel=0.1)]
    assert both.profiles[1][0] == ProfileKey("m", "bf16", "h100", 4096, 0, 2)


def test_a_profile_moves_with_the_newest_and_knows_its_spread() -> None:
    steady, shaky = None, None
    for at in range(30):
        steady, shaky = measured(steady, 1000, 1.0), measured(shaky, 1000, 1.0 if at % 2 else 2.0)
    assert steady == StepTimeProfile(1000, 0.0, 0.0, 30)
    assert 0.1 < shaky.variance < 0.5
    with pytest.raises(ValueError, match="no measurement"):
        measured(None, 0, 1.0)


def test_profiles_of_another_base_precision_or_type_are_no_evidence() -> None:
    profile = measured(None, 100, 1.0)
    keys = [
        ProfileKey("m", "bf16", "a", 128, 0),
        ProfileKey("m", "fp32", "a", 128, 0),
        ProfileKey("n", "bf16", "a", 128, 0),
        ProfileKey("m", "bf16", "b", 128, 0),
    ]
    assert [key for key, _ in relevant(dict.fromkeys(keys, profile), "m", "bf16", "a")] == keys[:1]
    assert key_of("m", "bf16", "a", 100, 33) == ProfileKey("m", "bf16", "a", 128, 64)
