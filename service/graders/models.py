"""Tables of endpoint graders, and of the texts that wait for their scores."""

from sqlalchemy import Double, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, func
from sqlalchemy import text as sql
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import At, Base, Id, Now


class EndpointGrader(Base):
    """A metric of a task whose scores an endpoint of the tenant answers. Kept while texts of the task may still be graded."""

    __tablename__ = "endpoint_graders"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"))
    metric: Mapped[str] = mapped_column(String(40))  # its name
    url: Mapped[str] = mapped_column(Text)
    headers: Mapped[bytes | None] = mapped_column(LargeBinary)  # encrypted JSON
    rate_limit: Mapped[int | None]  # texts a second
    next_call_at: Mapped[At | None]  # where there is a rate limit: no text is sent earlier

    __table_args__ = (UniqueConstraint("task_id", "metric"),)


class TextGrading(Base):
    """Texts of one evaluation, of a job (without one: of the base), at its end or at a milestone, for one grader. Deleted, with
    its texts, once their scores are the evaluation's."""

    __tablename__ = "text_gradings"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), index=True)
    grader_id: Mapped[str] = mapped_column(ForeignKey("endpoint_graders.id", ondelete="CASCADE"), index=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    milestone: Mapped[int | None]
    give_up_at: Mapped[At] = mapped_column(index=True)
    ended: Mapped[bool] = mapped_column(default=False, server_default="false")  # all texts are done, or too many have no score
    created_at: Mapped[Now]

    __table_args__ = (Index("ix_text_gradings_ended", "id", postgresql_where=sql("ended")),)


class GradedText(Base):
    """One text. `done`: it has its score, or the error for which it never gets one; then its texts are empty."""

    __tablename__ = "graded_texts"

    grading_id: Mapped[str] = mapped_column(ForeignKey("text_gradings.id", ondelete="CASCADE"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # among its evaluation's prompts
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    grader_id: Mapped[str | None] = mapped_column(String(40))  # its grading's
    prompt: Mapped[str] = mapped_column(Text)
    reference: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text)
    finish_reason: Mapped[str] = mapped_column(String(16))
    done: Mapped[bool] = mapped_column(default=False, server_default="false")
    score: Mapped[float | None] = mapped_column(Double)
    error: Mapped[str | None] = mapped_column(Text)  # of the last attempt
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")  # that failed
    unrecorded: Mapped[int] = mapped_column(default=0, server_default="0")  # attempts in a row without an outcome
    next_at: Mapped[At] = mapped_column(server_default=func.clock_timestamp())  # next attempt
    held_until: Mapped[At | None]  # during an attempt, the end of its visibility timeout, as `next_at` is then

    __table_args__ = (
        Index("ix_graded_texts_next", "grader_id", "next_at", "grading_id", "place", postgresql_where=sql("NOT done")),
        Index("ix_graded_texts_held", "tenant_id", postgresql_where=sql("held_until IS NOT NULL")),
    )
