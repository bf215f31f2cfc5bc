"""Loss curves over HTTP: whole, in part, without what a rewind hid."""

import math
from random import Random

import pytest

from service.tasks.curves import curve_reader
from service.tasks.curves.curve_writer import summarise
from service.tasks.curves.downsampling import BUCKETS
from service.tasks.models import CurveSummary
from tests.service.sample_tasks import chunk, jobs_of


@pytest.fixture
def task_id(tenant, database):
    """Two jobs. Job 0's curve is two chunks and a hidden one; its second point is not finite."""
    made = tenant.task()["id"]
    with database.begin() as session:
        first, second = jobs_of(session, made)
        chunk(session, first, "train_loss", [1, 2, 3], [3.0, math.nan, 1.0])
        chunk(session, first, "train_loss", [4, 5], [9.0, 9.5], hidden_by=2)
        chunk(session, first, "train_loss", [4, 6], [0.5, 0.25])
        chunk(session, first, "val_loss", [3, 6], [2.0, 1.5])
        chunk(session, second, "val_loss", [3], [math.inf])
    return made


def curves(tenant, task_id: str, **window) -> list[tuple]:
    response = tenant.get(f"/v1/tasks/{task_id}/metrics", params=window)
    assert response.status_code == 200, response.text
    assert response.json()["object"] == "metrics"
    return [(curve["index"], curve["series"], curve["steps"], curve["values"]) for curve in response.json()["data"]]


TRAIN = (0, "train_loss", [1, 2, 3, 4, 6], [3.0, None, 1.0, 0.5, 0.25])
VAL = (0, "val_loss", [3, 6], [2.0, 1.5])
OTHER = (1, "val_loss", [3], [None])


def test_all_curves_without_what_was_hidden(tenant, task_id):
    assert curves(tenant, task_id) == [TRAIN, VAL, OTHER]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ({"job": 1}, [OTHER]),
        ({"job": [0, 1], "series": "val_loss"}, [VAL, OTHER]),
        ({"series": ["train_loss", "val_loss"], "job": 0}, [TRAIN, VAL]),
        ({"series": "train_loss", "from_step": 3}, [(0, "train_loss", [3, 4, 6], [1.0, 0.5, 0.25])]),
        ({"series": "train_loss", "from_step": 2, "to_step": 4}, [(0, "train_loss", [2, 3, 4], [None, 1.0, 0.5])]),
        ({"from_step": 7}, []),
        ({"job": 9}, []),
    ],
)
def test_parts(tenant, task_id, window, expected):
    assert curves(tenant, task_id, **window) == expected


@pytest.mark.parametrize(
    ("window", "field"),
    [
        ({"job": "x"}, "job[0]"),
        ({"series": "loss"}, "series[0]"),
        ({"from_step": -1}, "from_step"),
        ({"to_step": 2**40}, "to_step"),
    ],
)
def test_a_window_that_is_none(tenant, task_id, window, field):
    response = tenant.get(f"/v1/tasks/{task_id}/metrics", params=window)
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, field)


def test_an_answer_beyond_all_measure_is_refused_with_a_way_out(tenant, task_id, monkeypatch):
    monkeypatch.setattr(curve_reader, "MAX_POINTS", 7)
    refused = tenant.get(f"/v1/tasks/{task_id}/metrics")
    assert (refused.status_code, refused.json()["code"]) == (422, "too_many_points")
    assert refused.json()["detail"].startswith("8 points are asked for, the limit is 7; narrow it")
    assert curves(tenant, task_id, job=0) == [TRAIN, VAL]


def coarse(tenant, task_id: str, **window) -> list[tuple]:
    response = tenant.get(f"/v1/tasks/{task_id}/metrics", params=window)
    assert response.status_code == 200, response.text
    names = ("index", "series", "steps", "values", "mins", "maxs")
    return [tuple(curve[name] for name in names) for curve in response.json()["data"]]


def test_few_points_hold_the_extremes(tenant, task_id):
    assert coarse(tenant, task_id, resolution=3) == [
        (0, "train_loss", [0, 2, 4, 6], [3.0, 1.0, 0.5, 0.25], [3.0, 1.0, 0.5, 0.25], [3.0, 1.0, 0.5, 0.25]),
        (0, "val_loss", [2, 6], [2.0, 1.5], [2.0, 1.5], [2.0, 1.5]),
        (1, "val_loss", [2], [None], [None], [None]),
    ]
    assert coarse(tenant, task_id, resolution=1, job=0, series="train_loss") == [
        (0, "train_loss", [0], [pytest.approx(4.75 / 4)], [0.25], [3.0])
    ]
    part = coarse(tenant, task_id, resolution=1, job=0, series="train_loss", from_step=3, to_step=4)
    assert part == [(0, "train_loss", [2, 4], [1.0, 0.5], [1.0, 0.5], [1.0, 0.5])]
    assert tenant.get(f"/v1/tasks/{task_id}/metrics?resolution=0").status_code == 422


@pytest.mark.parametrize("resolution", [1, 7, 100, 400, 2000])
def test_a_summary_says_what_the_points_say(tenant, database, resolution):
    task_id, random = tenant.task()["id"], Random(resolution)
    steps = sorted(random.sample(range(1, 40_000), 3000))
    values = [random.choice((random.gauss(0, 1), math.nan)) for _ in steps]
    with database.begin() as session:
        job = jobs_of(session, task_id)[0]
        for at in range(0, len(steps), 250):
            chunk(session, job, "train_loss", steps[at : at + 250], values[at : at + 250])
    by_points = coarse(tenant, task_id, resolution=resolution)
    with database.begin() as session:
        summarise(session, job.id)
        assert len(session.get_one(CurveSummary, (job.id, "train_loss")).buckets) <= BUCKETS
    by_summary = coarse(tenant, task_id, resolution=resolution)
    assert len(by_summary[0][2]) <= resolution + 1
    assert by_summary[0][:3] == by_points[0][:3]
    for one, other in zip(by_summary[0][3:], by_points[0][3:], strict=True):
        assert one == [None if value is None else pytest.approx(value, rel=1e-12, abs=1e-12) for value in other]
