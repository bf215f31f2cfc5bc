"""Scripted nodes before a real API, and a planner to be called at will. Who uses one begins with no task and no node."""

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from sqlalchemy import select, text, update

from service.background.reconciler import replan_elapsed_delays
from service.database.engine import Database, clock
from service.dependencies import Dependencies
from service.fleet import join_tokens
from service.fleet.models import Node
from service.fleet.node_health.quarantine import faults_of
from service.scheduler.planner import replan
from service.tasks.models import Task
from service.tasks.submission.stored_file_check import validate_due
from tests.service.fleet.scripted import ScriptedNode

_numbers = itertools.count(1)
_TABLES = (
    *("merged_models", "hub_pushes"),
    *("daily_usage", "tenant_daily_usage", "monthly_savings", "usage_rolled_up_through", "gpu_prices"),
    *("queue_status", "task_usage", "tenant_usage", "swept_placements", "ended_totals", "ended_totals_through", "join_tokens"),
    *(
        "answer_sessions",
        "ended_answer_sessions",
        "placements",
        "adapters",
        "point_chunks",
        "curve_summaries",
        "task_events",
        "endpoint_graders",
        "task_mirrors",
        "text_evaluations",
        "milestone_evaluations",
        "jobs",
        "plan_changes",
        "tasks",
        "batches",
        "nodes",
    ),
    *("plans", "plan_requests", "planner_lease", "throughput_profiles", "survivals"),
)


@pytest.fixture
def nothing_left(database) -> None:
    """The planner sees all tasks and nodes there are: those of the test before must be gone."""
    with database.begin() as session:
        for table in _TABLES:
            session.execute(text(f"DELETE FROM {table}"))


@pytest.fixture(scope="module")
def dependencies(settings) -> Iterator[Dependencies]:
    made = Dependencies.of(settings)
    yield made
    made.db.engine.dispose()


@pytest.fixture
def plan(dependencies, nothing_left) -> Callable[[], int]:
    """What the queue worker would do now: validate and plan; how many plans were made."""

    def turn() -> int:
        validate_due(dependencies.db, dependencies.storage, dependencies.queue)
        return replan(dependencies)

    return turn


def join_token(database: Database, name: str, hours: float = 1.0) -> str:
    """A join token for a node of this name."""
    with database.begin() as session:
        return join_tokens.mint(session, name, timedelta(hours=hours))[1]


@pytest.fixture
def new_node(client, database, nothing_left) -> Callable[..., ScriptedNode]:
    """A registered node: `new_node(slots=2)`."""

    def make(name: str | None = None, **how: object) -> ScriptedNode:
        name = name or f"node{next(_numbers)}"
        return ScriptedNode(client, join_token(database, name), name, **how).register()

    return make


@pytest.fixture
def rested(database, dependencies, plan) -> Callable[[], None]:
    """Let all rests end at this moment, have the reconciler notice, and plan."""

    def end() -> None:
        with database.begin() as session:
            now = clock(session)
            session.execute(update(Node).where(Node.rests_until > now).values(rests_until=now))
            for task in session.scalars(select(Task).where(Task.retry_at.is_not(None))):  # the first of several may be over
                known = faults_of(task)
                if all(fault.rest_until is None or fault.rest_until <= now for fault in known.values()):
                    continue
                faults = {node: fault.model_copy(update={"rest_until": now}) for node, fault in known.items()}
                task.faults = {node: fault.model_dump(mode="json") for node, fault in faults.items()}
                task.retry_at = now
        replan_elapsed_delays(dependencies)
        plan()

    return end
