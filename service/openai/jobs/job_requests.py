"""Translates OpenAI's fine-tuning job request into a task spec. Pure. Knows no HTTP, no rows and no files.

For `auto` Motet uses its defaults, which search learning rates. A multiplier of 1 is a learning rate of BASE_LEARNING_RATE.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from contract.early_exit_policy import EarlyExitPolicy
from contract.evaluation.text_evaluation import Evaluation
from contract.integrations import Integrations
from contract.job_config import MAX_ALPHA, BatchSize, Beta, Seed
from contract.messages.peft_settings import PeftSettings
from contract.search_space import SearchSpace
from contract.strict import NO_BOOL, STORABLE, Strict
from contract.task_spec import (
    VAL_LOSS,
    Dataset,
    Gpus,
    Isolation,
    MaxGpus,
    MaxSlowdown,
    Name,
    Objective,
    TaskSpec,
    Training,
    WarmStart,
)
from service.http.openai_ids import own_id
from service.http.problems import invalid_field
from service.openai.id_translation import OwnId
from service.openai.models.tuned_start import TunedStart
from service.openai.openai_names import ModelName

BASE_LEARNING_RATE = 1e-4
_AUTO_MULTIPLIERS = (0.5, 2.0, 10.0)

Auto = Literal["auto"]
Epochs = Annotated[int, Field(ge=1, le=100, strict=True)]
Multiplier = Annotated[float, Field(ge=1e-6, le=1e4, allow_inf_nan=False), NO_BOOL]
Pairs = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64), STORABLE], Annotated[str, Field(max_length=512), STORABLE]],
    Field(max_length=16),
]


class Hyperparameters(Strict):
    n_epochs: Auto | Epochs = "auto"
    batch_size: Auto | BatchSize = "auto"
    learning_rate_multiplier: Auto | Multiplier = "auto"


class PreferenceHyperparameters(Hyperparameters):
    beta: Auto | Beta = "auto"


class Supervised(Strict):
    hyperparameters: Hyperparameters | None = None


class Preference(Strict):
    hyperparameters: PreferenceHyperparameters | None = None


class Method(Strict):
    type: Literal["supervised", "dpo"]
    supervised: Supervised | None = None
    dpo: Preference | None = None

    @model_validator(mode="after")
    def _of_its_type(self) -> Self:
        for name, said in (("supervised", self.supervised), ("dpo", self.dpo)):
            if said is not None and name != self.type:
                raise ValueError(f"'{name}' belongs to type '{name}'; the type is '{self.type}'")
        return self

    @property
    def hyperparameters(self) -> Hyperparameters | None:
        own = self.supervised or self.dpo
        return own.hyperparameters if own is not None else None


def _of_own_adapter(start: WarmStart) -> WarmStart:
    return start.model_copy(update={"adapter_id": own_id(start.adapter_id)})


def _of_own_file(evaluation: Evaluation) -> Evaluation:
    return evaluation if evaluation.file_id is None else evaluation.model_copy(update={"file_id": own_id(evaluation.file_id)})


class JobRequest(Strict):
    """OpenAI's fields; and Motet's own, which its SDK passes on from `extra_body`. `model` may be a tuned model."""

    model: ModelName
    training_file: Annotated[Name, OwnId]
    validation_file: Annotated[Name, OwnId] | None = None
    suffix: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f:]*$")] | None = None
    seed: Seed | None = None
    metadata: Pairs | None = None
    method: Method | None = None
    hyperparameters: Hyperparameters | None = Field(default=None, description="As method.supervised.hyperparameters; older")
    integrations: Integrations | None = Field(
        default=None,
        description="Of type wandb in OpenAI's form, of type mlflow in Motet's; curves are in the result file metrics.csv, too",
    )

    search_space: SearchSpace | None = None
    training: Training | None = None
    warm_start: Annotated[WarmStart, AfterValidator(_of_own_adapter)] | None = None
    early_exit: EarlyExitPolicy = EarlyExitPolicy()
    evaluation: Annotated[Evaluation, AfterValidator(_of_own_file)] | None = None
    select_by: Annotated[str, Field(max_length=40)] = VAL_LOSS
    gpus: Gpus = 1
    max_gpus: MaxGpus | None = None
    max_slowdown: MaxSlowdown | None = None
    isolation: Isolation = "shared"
    priority: Annotated[int, Field(ge=1, le=100, strict=True)] = 1

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        wanted, older = self._wanted(), self.hyperparameters
        if older is not None and any(
            getattr(wanted, name) != said for name, said in older.model_dump(exclude_unset=True).items()
        ):
            raise ValueError("'method' has hyperparameters of its own; leave the older 'hyperparameters' out")
        tried = [wanted.batch_size, wanted.learning_rate_multiplier, _beta(wanted)]
        if self.search_space is not None and any(said != "auto" for said in tried):
            raise ValueError("'search_space' says what is tried; leave batch_size, learning_rate_multiplier and beta at 'auto'")
        if self.search_space is not None and self.seed is not None:
            raise ValueError("'search_space' has seeds of its own; leave 'seed' out")
        if self.training is not None and "epochs" in self.training.model_fields_set and wanted.n_epochs != "auto":
            raise ValueError("'training.epochs' says how many epochs there are; leave n_epochs at 'auto'")
        return self

    def _wanted(self) -> Hyperparameters:
        own = self.method.hyperparameters if self.method is not None else None
        return own or self.hyperparameters or Hyperparameters()

    def spec(self, start: TunedStart | None = None) -> TaskSpec:
        """The task that this asks for; `start`: what `model` names, where that is a tuned model. Its jobs have the rank, the
        scale and the modules of `start`, as far as the request does not say them. Raises ValidationError where its fields
        contradict each other."""
        wanted = self._wanted()
        training = self.training or Training()
        if wanted.n_epochs != "auto":
            training = training.model_copy(update={"epochs": wanted.n_epochs})
        space = self.search_space or _space(wanted, self.seed or 0)
        return TaskSpec(
            name=self.suffix,
            base_model=start.base_model if start is not None else self.model,
            dataset=Dataset(file_id=self.training_file, validation_file_id=self.validation_file),
            objective=Objective(type="dpo" if self.method is not None and self.method.type == "dpo" else "sft"),
            search_space=space if start is None else _in_shape_of(start.config, space),
            warm_start=self.warm_start if start is None else WarmStart(adapter_id=start.adapter_id),
            **({"precision": start.precision} if start is not None else {}),
            training=training,
            early_exit=self.early_exit,
            evaluation=self.evaluation,
            select_by=self.select_by,
            gpus=self.gpus,
            max_gpus=self.max_gpus,
            max_slowdown=self.max_slowdown,
            isolation=self.isolation,
            priority=self.priority,
            labels=self.metadata or {},
            **({"integrations": self.integrations} if self.integrations else {}),  # else an older planner can read it
        )


def _beta(wanted: Hyperparameters) -> float | Auto:
    return wanted.beta if isinstance(wanted, PreferenceHyperparameters) else "auto"


def _space(wanted: Hyperparameters, seed: int) -> SearchSpace:
    asked, beta = wanted.learning_rate_multiplier, _beta(wanted)
    multipliers = _AUTO_MULTIPLIERS if asked == "auto" else (asked,)
    return SearchSpace(
        learning_rate=[by * BASE_LEARNING_RATE for by in multipliers],
        batch_size=[4 if wanted.batch_size == "auto" else wanted.batch_size],
        beta=None if beta == "auto" else [beta],
        seed=[seed],
    )


def _in_shape_of(start: PeftSettings, space: SearchSpace) -> SearchSpace:
    """The space with the adapter's rank, scale and modules where it says none itself. Raises Invalid where a job cannot have
    its alpha, as the export of a job with rslora may say it."""
    listed = [job.alpha for job in space.jobs] if space.jobs is not None else [space.alpha or space.alpha_ratio]
    if start.alpha > MAX_ALPHA and None in listed:
        way_out = f"say search_space.alpha, at most {MAX_ALPHA:g}; what the adapter does at the start stays the same"
        raise invalid_field("model", "alpha_too_large", f"is an adapter of lora_alpha {start.alpha:g}; {way_out}")
    shape = {name: getattr(start, name) for name in ("rank", "alpha", "target_modules", "rslora")}
    said = space.model_dump(exclude_unset=True, exclude_none=True)
    if space.jobs is not None:
        return SearchSpace.model_validate(said | {"jobs": [shape | job for job in said["jobs"]]})
    if space.alpha_ratio is not None:
        del shape["alpha"]
    return SearchSpace.model_validate({name: [value] for name, value in shape.items()} | said)
