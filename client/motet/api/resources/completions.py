"""Answers of a base or an adapter that was asked, whole or as they come."""

from contract.strict import Message


class TokenCounts(Message):
    """What an answer used; both count towards the month's tokens."""

    prompt_tokens: int
    completion_tokens: int


class Completion(Message):
    """One answer. `finish_reason` is `stop`, or `length` where it was cut at the most tokens it might have."""

    model: str
    text: str
    finish_reason: str | None = None
    usage: TokenCounts


class CompletionPart(Message):
    """What an answer has more. The last part alone has `usage`."""

    text: str = ""
    finish_reason: str | None = None
    usage: TokenCounts | None = None
