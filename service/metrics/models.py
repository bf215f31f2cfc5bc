"""Tables of what /metrics tells without reading it anew: rows that ended and will not change, and the newest backup."""

from datetime import datetime

from sqlalchemy import DateTime, Double, String
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import Base, Big


class EndedTotal(Base):
    """Rows of one kind (tasks, jobs, placements) that ended under one name (a status, an end reason) before the moment in
    `ended_totals_through`, and the sums over them. Placements that retention has deleted since stay counted."""

    __tablename__ = "ended_totals"

    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    rows: Mapped[Big]
    tokens: Mapped[Big] = mapped_column(default=0)
    evaluation_tokens: Mapped[Big] = mapped_column(default=0)
    steps: Mapped[Big] = mapped_column(default=0)
    forwards: Mapped[Big] = mapped_column(default=0)
    gpu_seconds: Mapped[float] = mapped_column(Double, default=0.0)  # of all devices


class EndedTotalsThrough(Base):
    """One row: all that ended before `moment` is in `ended_totals`."""

    __tablename__ = "ended_totals_through"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, default=1)
    moment: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class NewestBackup(Base):
    """One row: the newest whole backup of this database, as its own state was at `taken_at`."""

    __tablename__ = "newest_backup"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, default=1)
    name: Mapped[str] = mapped_column(String(40))
    taken_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
