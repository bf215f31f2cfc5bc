"""Which mirrors are visited next, and that each has one visit at a time."""

import pytest
from sqlalchemy import select, update

from service.mirrors import mirror_claims
from service.mirrors.mirror_claims import OF_TENANT, ClaimLost, MirrorClaims
from service.mirrors.models import TaskMirror, TrackingServer
from tests.service.mirrors.conftest import added


def test_slow_servers_share_a_part_of_the_visits(new_tenant, placed, dependencies, database, monkeypatch):
    monkeypatch.setattr(mirror_claims, "SLOW_AT_ONCE", 2)
    claims = MirrorClaims(dependencies.db)
    for _ in range(2):
        whose = new_tenant()
        for _ in range(2):
            placed(whose)
    with database.begin() as session:
        session.execute(update(TrackingServer).values(slow=True))
    first = claims.take(16).rows
    assert (len(first), len(claims.take(16).rows)) == (2, 0)
    placed(new_tenant())
    assert len(claims.take(16).rows) == 1
    claims.visited(first[0], 1, left=True, finished=False)
    assert len(claims.take(16).rows) == 1


def test_mirrors_of_a_slow_server_hide_no_others_of_their_tenant(tenant, placed, mlflow, dependencies, database, monkeypatch):
    monkeypatch.setattr(mirror_claims, "SLOW_AT_ONCE", 0)
    taken = [placed() for _ in range(OF_TENANT + 1)][-1]
    quick = added(tenant, mlflow, name="quick")["id"]
    with database.begin() as session:
        session.execute(update(TrackingServer).where(TrackingServer.id != quick).values(slow=True))
        session.execute(update(TaskMirror).where(TaskMirror.task_id == taken.given.task_id).values(server_id=quick))
    assert [row.task_id for row in MirrorClaims(dependencies.db).take(16).rows] == [taken.given.task_id]


def test_who_claims_waits_for_no_mirror_that_is_being_changed(placed, dependencies, database):
    changed, free = placed(), placed()
    claims = MirrorClaims(dependencies.db)
    with database.begin() as session:
        session.scalars(select(TaskMirror).where(TaskMirror.task_id == changed.given.task_id).with_for_update()).one()
        assert [row.task_id for row in claims.take(16).rows] == [free.given.task_id]
    assert [row.task_id for row in claims.take(16).rows] == [changed.given.task_id]


def test_a_courier_whose_claim_another_has_records_nothing(placed, dependencies, due):
    placed()
    claims = MirrorClaims(dependencies.db)
    (first,) = claims.take(16).rows
    due()
    (second,) = claims.take(16).rows
    with pytest.raises(ClaimLost):
        claims.visited(first, 1, left=False, finished=True)
    claims.release(first)
    claims.visited(second, 1, left=False, finished=False)
