"""What the benchmark of joins through the whole service makes of the service's times, and the jobs that it draws."""

import pytest

from benchmarks.sharing_service import TENANTS, Ran, arrivals, compared, drawn, gate_of


def ran(created: float, placed: float, ended: float, beside: int = 0, losses: tuple[float, ...] = (2.0, 1.0)) -> Ran:
    return Ran(created, placed, ended, beside, list(losses))


def test_the_same_jobs_are_compared_one_by_one() -> None:
    exclusive = [ran(0, 0, 4), ran(0, 4, 8), ran(0, 8, 12)]
    joined = [ran(0, 0, 5, 2), ran(0, 0, 6, 2), ran(0, 1, 13, 0)]
    found = compared(exclusive, joined, [4.0, 4.0, 4.0])
    assert found["mean_completion_s"] == [8.0, 8.0]
    assert found["mean_completion_ratio"] == 1.0
    assert found["makespan_s"] == [12.0, 13.0]
    assert found["slowdown"] == [1.25, 1.5, 3.0]
    assert found["later_fraction"] == pytest.approx(2 / 3)
    assert found["joined"] == 2


def test_the_gate_falls_where_company_changes_losses() -> None:
    one, other = ran(0, 0, 1, losses=(2.0, 1.0)), ran(0, 0, 1, losses=(2.0, 1.1))
    assert gate_of([one], [one])["passed"]
    assert not gate_of([one, one], [one, other])["passed"]


def test_jobs_and_arrivals_are_drawn_by_the_seed() -> None:
    jobs = drawn(24, (100, 500), 3)
    assert jobs == drawn(24, (100, 500), 3) != drawn(24, (100, 500), 4)
    assert {job.tenant for job in jobs} == set(range(TENANTS))
    assert all(100 <= job.rows <= 500 for job in jobs)
    times = arrivals([6.0] * 4000, 1.5, 0)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] / 4000 == pytest.approx(6.0 / 1.5, rel=0.1)
