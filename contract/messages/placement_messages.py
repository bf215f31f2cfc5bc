"""Messages that say what a node should run: its desired state, placements, and what each job starts from."""

from typing import Annotated, Self

from pydantic import AwareDatetime, Field, model_validator

from contract.compatibility.lenient_documents import SentConfig, SentSpec
from contract.messages.adapter_manifest import AdapterFile
from contract.row_scores import RowScores
from contract.states import ExitReason, JobStatus
from contract.strict import Message, Sha256
from contract.task_spec import Precision

HUB_SCHEME, STORAGE_SCHEME = "hf://", "storage://"
BASE_FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$"
TEMPLATES = "additional_chat_templates"  # the one folder within a base's, as transformers writes it
TEMPLATE_PATH = rf"^{TEMPLATES}/[A-Za-z0-9][A-Za-z0-9._-]{{0,100}}\.jinja$"
BASE_FILE_PATH = f"{BASE_FILE_NAME}|{TEMPLATE_PATH}"
# of a base, as far as they exist: training reads none of these; merged models pass them on
PASSED_ON = ("tokenizer.model", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt", "USE_POLICY.md")
SMALL_FILES = (
    *("config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template.jinja", *PASSED_ON),
)


class BaseFile(Message):
    """A file of a base that nodes fetch. `path`: its place in the base's folder."""

    path: Annotated[str, Field(pattern=BASE_FILE_PATH)]
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]


class BaseModelRef(Message):
    """The frozen base. `revision` is the sha256 over its safetensors files, checked by the worker before it trains.

    `source` is a folder on the node; or `hf://organisation/name` with its `commit`, or `storage://name`, each with the `files`
    that the node fetches: from the service's storage where `stored`, otherwise from the hub.
    """

    name: str
    source: str
    revision: Sha256
    commit: str | None = None
    files: tuple[BaseFile, ...] = ()
    precision: Precision = "bf16"  # on a CPU float32 stands for bf16
    stored: bool = False  # the files are objects that the placement's token opens; workers from before it ask the hub

    @property
    def identity(self) -> tuple[str, str, Precision, tuple[BaseFile, ...] | str]:
        """Equal for placements that can share one loaded base: the same bytes that training reads under one name, by whatever
        commit."""
        read = tuple(file for file in self.files if file.path not in PASSED_ON)
        return self.name, self.revision, self.precision, read or self.source

    @model_validator(mode="after")
    def _pinned(self) -> Self:
        """Services from before hub bases leave commit and files out: the worker cannot read that, and waits for a newer one."""
        if self.source.startswith(HUB_SCHEME) and not (self.commit and self.files):
            raise ValueError("a base of the hub needs its commit and its files")
        if self.source.startswith(STORAGE_SCHEME) and not (self.stored and self.files):
            raise ValueError("a base in storage needs its files")
        return self


class FileRef(Message):
    """An immutable JSONL file, served by the fleet API to the placement's token."""

    file_id: str
    sha256: Sha256
    rows: int


class CheckpointRef(Message):
    """One job's resume state: an object of storage, taken after `step` optimizer steps."""

    step: int
    sha256: Sha256
    bytes: int


class WarmStartRef(Message):
    """The adapter that all jobs start from: the files of a PEFT folder, objects of storage."""

    adapter_id: str
    files: list[AdapterFile]


class JobAssignment(Message):
    """A job as Postgres knows it. An ended job comes along because its losses at the rungs still count in the ranking."""

    job_id: str
    index: int
    config: SentConfig
    proposed: bool = True  # false: of a later round of a tpe search, whose configuration the executor has still to choose
    status: JobStatus
    exit_reason: ExitReason | None = None
    warmup_val_loss: float | None = None  # set once the job finished warmup, which is its first rung
    boundary_scores: RowScores | None = None  # behind that loss, on each validation row; while a cut of the task may need them
    # by the text metric that the cut goes by (TaskSpec.cut_metric), of each prompt at the same step; None: none, or not yet
    boundary_text_scores: RowScores | None = None
    rung_losses: list[float] = Field(default=[])  # of an ended job under asha: validation losses at the rungs it reached
    promoted: bool = False  # passed the warmup boundary; under asha still ranked at later rungs
    checkpoint: CheckpointRef | None = None
    milestone: int = 0  # the last step, of its boundary and its milestones, whose texts the service has; 0: of none


class Leased(Message):
    """What an executor holds under one lease and fence: devices of its node, and a base on them."""

    placement_id: str
    fence: int
    token: str
    lease_seconds: float  # counted from when the request that fetched this was sent
    device_indexes: list[int]
    base: BaseModelRef
    leave: bool = False  # to be detached: a last checkpoint of all jobs, then Detached; no more training

    @property
    def identity(self) -> tuple[str, int]:
        """Tells it from all others: a merge comes again under the same id, with another fence."""
        return self.placement_id, self.fence


class AnswersOnly(Leased):
    """A placement without a task: its executor answers completions of the base, on devices that no task wants."""


class MergeWork(Leased):
    """A placement without devices: the base and an adapter are merged on the node's CPU, and stored file by file."""

    tenant_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    adapter: list[AdapterFile]  # objects that the service serves to the placement's token
    max_shard_bytes: Annotated[int, Field(ge=1)]
    stored: list[AdapterFile] = Field(default=[])  # by attempts before this one
    readme: str


class Placement(Leased):
    """One task on one executor."""

    task_id: str
    train_file: FileRef
    validation_file: FileRef | None
    prompts_file: FileRef | None = None  # of its evaluation; None: validation rows are the prompts
    spec: SentSpec  # as sent, completed with the defaults of the task's creation time; fields of a newer version preserved
    jobs: list[JobAssignment]
    base_val_loss: float | None = None  # None until a placement has measured it
    base_scores: RowScores | None = None  # on each validation row; None until a placement has measured them
    base_texts_evaluated: bool = False  # whether the base's texts are scored already
    base_text_scores: RowScores | None = None  # by the text metric that the cut goes by, of each prompt; None: none, or not yet
    warm_start: WarmStartRef | None = None
    next_seq: int = 1  # the next report that the service expects
    request_id: str | None = None  # of the API call that created the task, for logs
    traceparent: str | None = None  # of its span (W3C trace context); None: not traced, or by an older service
    tenant_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = (
        ""  # the tenant that owns the data; an older service omits it
    )
    created_at: AwareDatetime | None = None  # of the task: the date that a chat template renders
    weight: Annotated[float, Field(gt=0)] = 1.0  # of its tenant, whose tasks on an executor share it
    max_slowdown: Annotated[float, Field(ge=1)] | None = None  # beside others, as a multiple of the time alone


class Unchanged(Message):
    """A placement that this service cannot describe, since a newer version made its task. Its node goes on with what it has."""

    placement_id: str
    leave: bool = False


class DesiredState(Message):
    """Everything the node should run, and nothing else: what is in no list is to be detached."""

    version: int
    placements: list[Placement]
    unchanged: list[Unchanged] = Field(default=[])
    # a worker from before them ignores them; None: of a service from before them, beside which they go on
    sessions: list[AnswersOnly] | None = None
    merges: list[MergeWork] | None = None  # as sessions
