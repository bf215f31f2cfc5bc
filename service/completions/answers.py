"""Pieces of answers, as executors send them: stored for the API process that waits, and billed at the end.

What is under way needs no durable commit: its reader ends with its connection. The end, which is billed, does.
"""

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from contract.messages.completion_messages import CompletionPiece, CompletionPieces, PiecesTaken
from service.completions import limits
from service.completions.executor_claims import CLAIM_SECONDS, Carrier
from service.completions.models import ENDED, RUNNING, CompletionRequest
from service.completions.models import CompletionPieces as StoredPieces
from service.completions.requests import notify
from service.database.engine import clock
from service.usage.usage_ledger import month_at


def take(session: Session, carrier: Carrier, said: CompletionPieces) -> PiecesTaken:
    """Store pieces of claimed requests; one that came before changes nothing. Tells which requests are gone."""
    if not any(piece.over for piece in said.pieces):
        session.execute(text("SET LOCAL synchronous_commit TO off"))
    gone, told = [], []
    for piece in sorted(said.pieces, key=lambda piece: piece.request_id):  # in the order of their locks
        row = session.get(CompletionRequest, piece.request_id, with_for_update=True)
        if row is None or row.executor != said.executor or not carrier.audience.has(row.tenant_id, row.dedicated):
            gone.append(piece.request_id)
            continue
        if piece.attempt not in (None, row.attempts):  # the executor lost the request, and was given it again since
            continue
        waited_for = row.state == RUNNING
        if not waited_for:
            gone.append(row.id)
        elif piece.number > row.last_piece:
            row.last_piece, row.placement_id = piece.number, carrier.placement_id
            row.claimed_until = clock(session) + timedelta(seconds=CLAIM_SECONDS)
            session.add(StoredPieces(request_id=row.id, number=piece.number, content=piece))
            told.append(row.id)
        _count(session, row, piece)
    session.flush()
    notify(session, *told)
    return PiecesTaken(gone=gone)


def _count(session: Session, row: CompletionRequest, piece: CompletionPiece) -> None:
    """What it has used so far; billed once it is over, also where nobody waits for it any more."""
    if row.billed:
        return
    row.prompt_tokens, row.completion_tokens = piece.prompt_tokens, piece.completion_tokens
    if piece.over:
        now = clock(session)
        limits.bill(session, row, piece.seconds, month_at(now))
        row.state, row.ended_at = ENDED, row.ended_at or now
