"""Errors of completions."""

from service.http.problems import Problem, Unavailable


class TooManyCompletions(Problem):
    """The tenant's limit; `Retry-After` says when another try may succeed."""

    status, code, title = 429, "rate_limit_exceeded", "The tenant's limit of completions is reached"

    @classmethod
    def after(cls, seconds: int, detail: str) -> "TooManyCompletions":
        return cls(detail, headers={"Retry-After": str(seconds)})


class NoExecutor(Unavailable):
    code, title = "no_executor", "No executor answers for this base"


class CompletionLost(Unavailable):
    """The executor ended in the middle, or had no memory."""

    code, title = "completion_lost", "The executor could not finish the answer"
