"""Why a plan is due, the plans that were made, and whose turn it is to plan."""

from sqlalchemy import Double, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.db import At, Base, Big, Id, Json, Now


class PlanRequest(Base):
    """One change that matters to the plan. The planner deletes exactly the rows it read."""

    __tablename__ = "plan_requests"

    id: Mapped[Big] = mapped_column(primary_key=True, autoincrement=True)
    reason: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[Now]


class PlannerLease(Base):
    """One row: the planner that may write, by token."""

    __tablename__ = "planner_lease"

    id: Mapped[int] = mapped_column(primary_key=True)  # always 1
    token: Mapped[str] = mapped_column(String(40))
    until: Mapped[At]


class Plan(Base):
    """One decision, with what explains it."""

    __tablename__ = "plans"

    id: Mapped[Id]
    created_at: Mapped[Now]
    requests: Mapped[int]  # how many plan requests it answered
    method: Mapped[str] = mapped_column(String(16))  # start, greedy or cpsat
    solver_status: Mapped[str | None] = mapped_column(String(16))
    objective: Mapped[float | None] = mapped_column(Double)
    bound: Mapped[float | None] = mapped_column(Double)
    seconds: Mapped[float] = mapped_column(Double)
    problem: Mapped[Json]
    decision: Mapped[Json]
    note: Mapped[str | None] = mapped_column(Text)
