"""The base's precision where tasks are planned: bytes a GPU must hold, and speeds that are learned apart."""

from sqlalchemy import select

from service.fleet.models import BaseModel
from service.lru_cache import LruCache
from service.scheduler.estimate.task_workload import Workload
from service.scheduler.models import ThroughputProfile
from service.tasks.models import Task
from tests.service.fleet.scripted import moved, throughput


def test_a_base_in_nf4_counts_its_own_bytes_and_its_own_speeds(tenant, new_node, plan, database):
    node = new_node(slots=3)
    tasks = {precision: tenant.task(precision=precision)["id"] for precision in ("nf4_double", "nf4", "fp8", "bf16")}
    plan()
    placement = node.take(tasks["nf4_double"])
    assert placement.given.base.precision == placement.given.spec.precision == "nf4_double"
    done = throughput(steps=10, tokens=1000, seconds=4000.0)
    placement.report(placement.attached(), moved(0, "warmup"), done)
    with database.begin() as session:
        (profile,) = session.scalars(select(ThroughputProfile))
        assert profile.precision == "nf4_double"
        parameters = session.scalars(select(BaseModel)).one().parameters
        rows = {precision: session.get_one(Task, task) for precision, task in tasks.items()}
        work = Workload(session, rows.values(), LruCache())
        assert work.bytes_per_gpu(rows["bf16"]) == 2 * parameters
        assert work.bytes_per_gpu(rows["nf4"]) == int(0.5625 * parameters)
        assert work.bytes_per_gpu(rows["fp8"]) == parameters
        assert 0.51 * parameters < work.bytes_per_gpu(rows["nf4_double"]) < 0.52 * parameters
        slow, fast = (work.estimate(rows[precision], "cpu", 1).seconds for precision in ("nf4_double", "nf4"))
        assert slow > 10 * fast, "a speed measured in one precision says nothing of another"


def test_a_spec_that_is_older_than_the_choice_means_bf16():
    assert Task(spec={"base_model": "small"}).precision == "bf16"
    assert Task(spec={"base_model": "small", "precision": "nf4"}).precision == "nf4"
