"""Reservations from rows: whose GPUs, and who still has to leave them."""

from sqlalchemy import func, update

from service.database.engine import clock
from service.fleet.models import Placement
from service.scheduler.state.preemption.gpu_reservations import GpuReservation, reservations_of


def test_a_reservation_is_on_the_node_of_those_who_were_asked_last_and_waits_for_them(new_tenant, new_node, plan, database):
    owner, running = new_tenant(), []
    for slots in (1, 2):
        node = new_node(slots=slots)
        running += [owner.task()["id"] for _ in range(slots)]
        plan()
    assert {placement.task_id for placement in node.desired().placements} == set(running[1:])
    waiting = owner.task()["id"]

    def reserved(*left: str) -> list[GpuReservation]:
        with database.begin() as session:
            session.execute(update(Placement).values(promised_to=waiting))
            session.execute(update(Placement).where(Placement.task_id.in_(left)).values(ended_at=func.now()))
            return reservations_of(session, clock(session))

    assert reserved() == [GpuReservation(waiting, node.id, frozenset(running[1:]))]
    assert reserved(running[1]) == [GpuReservation(waiting, node.id, frozenset(running[2:]))]
    assert reserved(*running) == [GpuReservation(waiting, node.id, frozenset())]
