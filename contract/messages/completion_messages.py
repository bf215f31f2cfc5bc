"""Messages of completions: what an executor is asked to generate, and the pieces of text that it sends back.

An executor claims requests for the base that it holds, under the token of one of its placements; `executor` names the process,
so that what a process claimed ends with it.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from contract.messages.adapter_manifest import AdapterFile
from contract.messages.placement_messages import CheckpointRef
from contract.strict import Message

MOST_CHOICES = 16  # texts of one request: prompts times n
MOST_TOP_LOGPROBS = 20  # alternatives that a token's log-probability comes with
ExecutorName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{8,64}$")]


def _storable(text: str) -> str:
    """Models generate NUL, which the service cannot store."""
    return text.replace("\0", "\ufffd")


class ChatTurn(Message):
    role: str
    content: str
    name: str | None = None  # earlier workers ignore it


class CheckpointWeights(Message):
    """The newest checkpoint of a job that trains: its weights are those in the file, multiplied as its configuration says."""

    file: CheckpointRef
    plain_alpha: float


class CompletionWork(Message):
    """One request. prompts: texts, or tokens; with `messages` the base's chat template makes the one prompt. Each prompt is
    answered `n` times, choice i with seed + i. adapter: files of a PEFT folder; None with no checkpoint: the base alone.
    attempt: how often the request was given to an executor, this time included; its pieces say the same."""

    request_id: str
    attempt: int = 1
    tenant_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")]
    messages: list[ChatTurn] | None = None
    prompts: list[str | list[int]] = Field(default=[])
    n: Annotated[int, Field(ge=1)] = 1
    max_tokens: Annotated[int, Field(ge=1)]
    exact_max_tokens: bool = False  # whether it was asked for, so that a prompt that leaves less room is refused
    temperature: float
    top_p: float
    stop: list[str] = Field(default=[])
    seed: int
    logprobs: int | None = None
    adapter: list[AdapterFile] | None = None
    checkpoint: CheckpointWeights | None = None


class CompletionsWanted(Message):
    """The executor asks for up to `room` requests, and says which it has. The answer comes at once where there is news, else
    after at most `wait` seconds."""

    fence: int
    executor: ExecutorName
    room: Annotated[int, Field(ge=0, le=256)]
    held: Annotated[list[str], Field(max_length=512)] = Field(default=[])
    wait: Annotated[float, Field(ge=0, le=30)] = 0.0


class CompletionsGiven(Message):
    """gone: of those that it has, the ones that nobody waits for any more."""

    requests: list[CompletionWork]
    gone: list[str] = Field(default=[])


class TokenProbability(Message):
    """A token's text, its log-probability, and the most probable tokens at its place, best first."""

    token: str
    logprob: float
    top: list[tuple[str, float]] = Field(default=[])


class ChoicePiece(Message):
    """What one choice has more since the piece before. Choices count through the prompts: prompt p's answers are p*n and on."""

    index: Annotated[int, Field(ge=0, lt=MOST_CHOICES)]
    text: Annotated[str, AfterValidator(_storable)] = ""
    logprobs: list[TokenProbability] = Field(default=[])
    finish_reason: Literal["stop", "length"] | None = None


class CompletionFailed(Message):
    """param: the field of the request that is wrong; None: the executor could not, and another may."""

    code: str
    message: Annotated[str, Field(max_length=2000)]
    param: str | None = None


class CompletionPiece(Message):
    """Pieces of a request's choices; `over`: its last, which tells what to bill. `number` counts a request's pieces from 1, so
    that a piece that is sent again changes nothing. failed: in place of what is left. attempt: of the work that it answers."""

    request_id: str
    attempt: int | None = None  # earlier workers do not say
    number: Annotated[int, Field(ge=1)]
    choices: list[ChoicePiece] = Field(default=[])
    over: bool = False
    failed: CompletionFailed | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0  # of the device


class CompletionPieces(Message):
    fence: int
    executor: ExecutorName
    pieces: Annotated[list[CompletionPiece], Field(min_length=1, max_length=1024)]


class PiecesTaken(Message):
    gone: list[str] = Field(default=[])
