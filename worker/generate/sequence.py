"""One sequence from its prompt to its end: what was asked, what is generated, where its keys lie. Knows no tensors.

A sequence's tokens depend on its request alone: sampling draws from (seed, number of the token), never from a shared state.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from contract.messages.completion_messages import MOST_TOP_LOGPROBS
from worker.generate.stop_matcher import StopMatcher
from worker.generate.text_decoder import Decode, TextDecoder

FinishReason = Literal["stop", "length"]  # an end token or a stop string; max_new_tokens


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and when a sequence ends.

    temperature: 0 takes the most probable token, the lowest number among equals. top_p: the smallest set of most probable
    tokens that holds this much probability (Holtzman et al. 2020). stop: strings that end the text, which then holds none.
    logprobs: how many alternatives each token's log-probability comes with (0: its own alone); None: no log-probabilities. They
    are of the model's distribution, before temperature and top_p.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; it must be a number of at least 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if any(not text for text in self.stop):
            raise ValueError("stop holds an empty string, which would end every text at its start")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_TOP_LOGPROBS:
            raise ValueError(f"logprobs is {self.logprobs}; it must be between 0 and {MOST_TOP_LOGPROBS}")


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability, and the most probable tokens at its place with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Completion:
    """A finished sequence. tokens: all that were generated, an end token included. text: without special tokens, and up to the
    first stop string."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(eq=False)
class Sequence:
    """prompt: tokens. adapter: what the runner takes for this sequence's adapter; None: the base alone. pages: of the
    cache, for the prompt and all that may come; empty before it joins the batch. streams: whether `text` grows with each
    token; otherwise it is made at the end, unless there are stop strings to look for."""

    prompt: tuple[int, ...]
    sampling: Sampling
    adapter: Hashable | None = None
    pages: tuple[int, ...] = ()
    generated: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    completion: Completion | None = None
    streams: bool = False
    _decoder: TextDecoder | None = None
    _matcher: StopMatcher | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt has no tokens")

    @property
    def text(self) -> str:
        """The text that is certain by now; nothing of it is ever taken back."""
        if self.completion is not None:
            return self.completion.text
        return self._matcher.certain() if self._matcher is not None else ""

    @property
    def most_tokens(self) -> int:
        """Tokens whose keys it may have to keep: the last one is never fed."""
        return len(self.prompt) + self.sampling.max_new_tokens - 1

    @property
    def cached(self) -> int:
        """Tokens whose keys lie in the cache while it decodes: all but the newest."""
        return len(self.prompt) + len(self.generated) - 1

    def append(self, token: int, logprob: TokenLogprob | None, end_tokens: frozenset[int], decode: Decode) -> None:
        """Take the next token; sets `completion` if it ends the sequence."""
        self.generated.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        ended = token in end_tokens
        if (self.sampling.stop or self.streams) and not ended:
            self._decoder = self._decoder or TextDecoder(decode)
            self._matcher = self._matcher or StopMatcher(self.sampling.stop)
            self._matcher.push(self._decoder.push(token))
        stopped = self._matcher is not None and self._matcher.matched
        if ended or stopped or len(self.generated) == self.sampling.max_new_tokens:
            self._finish("stop" if ended or stopped else "length", decode)

    def _finish(self, reason: FinishReason, decode: Decode) -> None:
        if self._decoder is None or self._matcher is None:
            text = decode(self.generated)
        else:
            self._matcher.push(self._decoder.flush())
            text, reason = self._matcher.text(), "stop" if self._matcher.matched else reason
        logprobs = tuple(self.logprobs) if self.sampling.logprobs is not None else None
        self.completion = Completion(tuple(self.generated), text, reason, logprobs)
