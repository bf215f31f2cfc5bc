"""One request under way: its sequences, what of their texts was sent, what it has cost. Runs nothing."""

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

from contract.messages.completion_messages import (
    ChoicePiece,
    CompletionFailed,
    CompletionPiece,
    TokenProbability,
)
from worker.executor.completions.request_preparation import PreparedRequest
from worker.generate.sequence import Sequence, TokenLogprob
from worker.generate.text_decoder import Decode
from worker.model.arena import Slot

_SEEDS = 2**63
_NOT_FINITE = CompletionFailed(
    code="not_finite",
    message="gives log-probabilities that are not finite: the weights of its adapter, or of its base, are too large",
    param="model",
)


@dataclass(eq=False)
class RequestRun:
    """sequences: one for each choice, prompt by prompt. seconds: of the device."""

    prepared: PreparedRequest
    sequences: list[Sequence] = field(default_factory=list)
    seconds: float = 0.0
    _texts: list[int] = field(default_factory=list)  # characters sent of each choice,
    _probabilities: list[int] = field(default_factory=list)  # and tokens' log-probabilities
    _ended: set[int] = field(default_factory=set)  # choices whose end was told
    _number: int = 0

    @property
    def id(self) -> str:
        return self.prepared.work.request_id

    @property
    def most_tokens(self) -> list[int]:
        """Of each of its choices, the tokens whose keys it may keep."""
        pairs = zip(self.prepared.prompts, self.prepared.samplings, strict=True)
        return [len(prompt) + sampling.max_new_tokens - 1 for prompt, sampling in pairs for _ in range(self.prepared.work.n)]

    @property
    def unsent(self) -> bool:
        """Whether nothing of its texts was sent yet, so that it may begin anew."""
        return not any(self._texts) and not any(self._probabilities)

    @property
    def done(self) -> bool:
        return bool(self.sequences) and all(one.completion is not None for one in self.sequences)

    def begin(self, slot: Slot | None) -> list[Sequence]:
        """Its sequences, to be generated with the adapter in this slot."""
        work = self.prepared.work
        self.sequences = [
            Sequence(prompt, replace(sampling, seed=(sampling.seed + choice) % _SEEDS), slot, streams=True)
            for prompt, sampling in zip(self.prepared.prompts, self.prepared.samplings, strict=True)
            for choice in range(work.n)
        ]
        self._texts, self._probabilities = [0] * len(self.sequences), [0] * len(self.sequences)
        self._ended.clear()
        return self.sequences

    def piece(self, token_text: Decode, end_tokens: frozenset[int]) -> CompletionPiece | None:
        """What it has more than it had at the last call; None where that is nothing. A failure, which is its last, where
        log-probabilities that it asks for are not finite: no message holds them."""
        found = [self._choice(index, one, token_text, end_tokens) for index, one in enumerate(self.sequences)]
        if not all(math.isfinite(value) for one in found for each in one.logprobs for value in _values(each)):
            return self.failure(_NOT_FINITE)
        choices = [one for one in found if one.text or one.logprobs or one.finish_reason]
        return self._piece(choices=choices, over=self.done) if choices else None

    def _choice(self, index: int, one: Sequence, token_text: Decode, end_tokens: frozenset[int]) -> ChoicePiece:
        sent, known = self._texts[index], self._probabilities[index]
        text, listed = one.text[sent:], one.logprobs[known:]
        self._texts[index], self._probabilities[index] = sent + len(text), known + len(listed)
        reason = None
        if one.completion is not None and index not in self._ended:
            self._ended.add(index)
            reason = one.completion.finish_reason
        probabilities = [_probability(each, token_text) for each in listed if each.token not in end_tokens]
        return ChoicePiece(index=index, text=text, logprobs=probabilities, finish_reason=reason)

    def failure(self, failed: CompletionFailed) -> CompletionPiece:
        return self._piece(failed=failed, over=True)

    def ending(self) -> CompletionPiece:
        """Of a request that nobody waits for any more: what there is to bill."""
        return self._piece(over=True)

    def _piece(
        self, choices: Many[ChoicePiece] = (), over: bool = False, failed: CompletionFailed | None = None
    ) -> CompletionPiece:
        self._number += 1
        begun = any(one.generated for one in self.sequences)
        return CompletionPiece(
            request_id=self.id,
            attempt=self.prepared.work.attempt,
            number=self._number,
            choices=list(choices),
            over=over,
            failed=failed,
            prompt_tokens=sum(map(len, self.prepared.prompts)) if begun else 0,
            completion_tokens=sum(len(one.generated) for one in self.sequences),
            seconds=self.seconds,
        )


def _values(one: TokenProbability) -> list[float]:
    return [one.logprob, *(value for _, value in one.top)]


def _probability(one: TokenLogprob, token_text: Decode) -> TokenProbability:
    top = [(token_text([token]), logprob) for token, logprob in one.top]
    return TokenProbability(token=token_text([one.token]), logprob=one.logprob, top=top)
