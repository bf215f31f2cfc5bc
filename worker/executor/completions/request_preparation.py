"""Makes a request ready to generate: its prompts as tokens, its adapter on the host. Runs beside the training loop."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from contract.messages.completion_messages import CheckpointWeights, CompletionFailed, CompletionWork
from contract.rows.row_encoding import RowReader
from contract.rows.tokenizer import RowError
from worker.adapters.job_checkpoint import UnreadableWeights, load_tensors
from worker.adapters.warm_start import WarmStartError, read_peft
from worker.api_client import LinkError, PlacementLink
from worker.data.disk_full import DiskFull
from worker.data.node_cache import NodeCache
from worker.data.object_cache import WrongBytes
from worker.executor.placement.placement_lease import Lease
from worker.generate.sequence import Sampling
from worker.replicas.base_loader import DeviceBase
from worker.replicas.text_generation import AdapterWeights

log = logging.getLogger(__name__)

_TRIES = 3


class CannotAnswer(Exception):
    """The request has no answer here; `failed` says why."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.failed = CompletionFailed(code=code, message=message[:2000], param=param)


@dataclass(frozen=True)
class PreparedRequest:
    """adapter_key: requests of one share an adapter's rows; None: the base alone. samplings: of each prompt's first choice."""

    work: CompletionWork
    prompts: tuple[tuple[int, ...], ...]
    samplings: tuple[Sampling, ...]
    adapter_key: str | None = None
    adapter: AdapterWeights | None = None


class RequestPreparation:
    def __init__(self, link: PlacementLink, cache: NodeCache) -> None:
        self._link, self._cache = link, cache
        self._read: tuple[str, AdapterWeights] | None = None  # the last adapter, on the host

    def prepare(self, work: CompletionWork, base: DeviceBase, lease: Lease) -> PreparedRequest:
        """Raises CannotAnswer."""
        prompts = tuple(tuple(prompt) for prompt in _tokens(work, base))
        samplings = tuple(_sampling(work, len(prompt), base) for prompt in prompts)
        key = _adapter_key(work)
        if key is None:
            return PreparedRequest(work, prompts, samplings)
        if self._read is None or self._read[0] != key:
            self._read = key, self._weights(work, base, lease)
        return PreparedRequest(work, prompts, samplings, key, self._read[1])

    def forget(self) -> None:
        """Let the last adapter go. In the thread of `prepare`, after what was prepared for whom it was read."""
        self._read = None

    def _weights(self, work: CompletionWork, base: DeviceBase, lease: Lease) -> AdapterWeights:
        layout = base.trainer.arena.layout
        try:
            if work.checkpoint is not None:
                return _checkpoint_weights(self._fetch(work, work.checkpoint.file.sha256, lease), work.checkpoint)
            files = {file.path: self._fetch(work, file.sha256, lease) for file in work.adapter or ()}
            read = read_peft(files, layout)
        except WarmStartError as error:
            raise CannotAnswer("adapter_unusable", f"the adapter {error}", "model") from None
        except (OSError, UnreadableWeights) as error:  # a newer checkpoint has replaced it on this node
            raise CannotAnswer("adapter_away", f"the checkpoint was replaced meanwhile ({error}); try again") from None
        return AdapterWeights(read.weights, read.scale * read.rank)

    def _fetch(self, work: CompletionWork, sha256: str, lease: Lease) -> Path:
        def blocks() -> Iterable[bytes]:
            return self._link.completion_object(lease.placement_id, lease.token, work.request_id, sha256)

        why: Exception | None = None
        for _ in range(_TRIES):
            try:
                with self._cache.relief():
                    return self._cache.objects(work.tenant_id).fetch(sha256, blocks)
            except (LinkError, WrongBytes, DiskFull) as error:
                why = error
        log.warning("request %s: its adapter was not fetched: %s", work.request_id, why)
        raise CannotAnswer("adapter_away", "the adapter could not be fetched; try again shortly")


def _adapter_key(work: CompletionWork) -> str | None:
    if work.checkpoint is not None:
        return work.checkpoint.file.sha256
    return ".".join(file.sha256 for file in work.adapter) if work.adapter is not None else None


def _checkpoint_weights(path: Path, said: CheckpointWeights) -> AdapterWeights:
    """The weights of a job's checkpoint, float32 [rank, W]; its other tensors are not read."""
    return AdapterWeights(load_tensors(path, bare=True).adapter.weights, said.plain_alpha)


def _tokens(work: CompletionWork, base: DeviceBase) -> list[list[int]]:
    """The tokens of each prompt. Raises CannotAnswer, also for tokens that the tokenizer makes and the base lacks."""
    if work.messages is not None:
        param, found = "messages", [chat_tokens(base.reader.at(datetime.now(UTC)), work)]
    else:
        param, found = "prompt", [base.reader.text_prompt(one) if isinstance(one, str) else one for one in work.prompts]
    for prompt in found:
        if not prompt:
            raise CannotAnswer("empty_prompt", "has no tokens; give it at least one", param)
        if not all(0 <= token < base.vocabulary for token in prompt):
            raise CannotAnswer(
                "unknown_token", f"holds a token that the base lacks; it knows 0 to {base.vocabulary - 1}", param
            )
    return found


def chat_tokens(reader: RowReader, work: CompletionWork) -> list[int]:
    """The tokens of a request's messages, written as in training. Raises CannotAnswer."""
    assert work.messages is not None
    try:
        return reader.chat_prompt([turn.model_dump(exclude_none=True) for turn in work.messages])
    except RowError as error:
        raise CannotAnswer("template_refused", str(error), "messages") from None


def _sampling(work: CompletionWork, prompt: int, base: DeviceBase) -> Sampling:
    """How the prompt's first choice is drawn, within the base's positions."""
    left = base.max_positions - prompt
    if left < 1 or (work.exact_max_tokens and work.max_tokens > left):
        asked = f" and {work.max_tokens} for the answer" if work.exact_max_tokens else ""
        raise CannotAnswer(
            "context_length_exceeded",
            f"the base has {base.max_positions} positions, but the prompt takes {prompt} tokens{asked}; shorten the prompt"
            + (" or lower max_tokens" if work.exact_max_tokens else ""),
            "messages" if work.messages is not None else "prompt",
        )
    return Sampling(min(work.max_tokens, left), work.temperature, work.top_p, tuple(work.stop), work.seed, work.logprobs)
