"""What a task asks about the texts that its adapters generate: how they are generated, and by which metrics they are scored.

Names and numbers, strictly validated. Knows no model and no tokenizer.
"""

import re
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from contract.evaluation.endpoint_fields import HIDDEN, Headers, Url
from contract.evaluation.expression_rules import pattern_fault
from contract.evaluation.grader_templates import OUTPUT, Template, placeholders
from contract.evaluation.json_schema_rules import checked
from contract.strict import NO_BOOL, STORABLE, Strict
from contract.values.shares import share_of

MOST_METRICS, MOST_STOPS, MOST_PROMPTS, MOST_MILESTONES = 8, 16, 1024, 8
SAMPLES = 8  # texts kept of each evaluation

_OF_ROWS = ("val_loss", "val_accuracy")  # names that results of validation rows have


def _not_of_rows(name: str) -> str:
    if name in _OF_ROWS:
        raise ValueError(f"is '{name}', which names a result of validation rows; give the metric another name")
    return name


# none of the characters that a table in an adapter's README, or a CSV, would have to quote
MetricName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9 _.:/-]{0,38}[A-Za-z0-9_.:/-])?$"), AfterValidator(_not_of_rows)
]
NAME_OF_0_2 = re.compile(r"[a-z][a-z0-9_]{0,39}")  # of which a worker of 0.2 takes any
FileId = Annotated[str, Field(min_length=1, max_length=128), STORABLE]
_Text = Annotated[str, Field(min_length=1, max_length=1000), STORABLE]


class _Metric(Strict):
    """name: under which results are reported and selected by; left out, the metric's type."""

    name: MetricName | None = None


class ExactMatch(_Metric):
    """1 where the text equals the reference, white space at both ends aside."""

    type: Literal["exact_match"]
    ignore_case: bool = False


class Contains(_Metric):
    """1 where the text contains the reference, white space at the reference's ends aside."""

    type: Literal["contains"]
    ignore_case: bool = False


def _usable(pattern: str) -> str:
    fault = pattern_fault(pattern)
    if fault is not None:
        raise ValueError(fault)
    return pattern


class Regex(_Metric):
    """1 where the pattern is found in the text; a pattern with a group must find in the text what it finds in the reference."""

    type: Literal["regex"]
    pattern: Annotated[_Text, AfterValidator(_usable)]


class Number(_Metric):
    """1 where the first number after the last `marker` of the text equals that of the reference, as GSM8K's answers are
    scored (Cobbe et al. 2021). A reference without the marker is searched whole; a text without it scores 0."""

    type: Literal["number"]
    marker: _Text = "####"


class JsonValid(_Metric):
    """1 where the text is a JSON document."""

    type: Literal["json_valid"]


class JsonSchema(_Metric):
    """1 where the text is a JSON document that the schema allows (JSON Schema 2020-12; references within the schema alone)."""

    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], AfterValidator(checked)]


class RougeL(_Metric):
    """F measure of the longest common subsequence of words (Lin 2004), lower case, letters and digits alone."""

    type: Literal["rouge_l"]


class Bleu(_Metric):
    """BLEU of words up to four in a row (Papineni et al. 2002), of each text by itself as sacreBLEU computes it (tokens of 13a,
    exponential smoothing). The mean over prompts is not the BLEU of a corpus."""

    type: Literal["bleu"]


class Chrf(_Metric):
    """F score of character n-grams up to 6, recall weighted twice (Popović 2015). In any language; by sacreBLEU."""

    type: Literal["chrf"]


class _Grader(_Metric):
    """A grader as OpenAI's API writes it. White space at both ends of input and reference counts for nothing."""

    input: Template = "{{sample.output_text}}"
    reference: Template = "{{item.completion}}"

    @model_validator(mode="after")
    def _of_the_text(self) -> Self:
        if OUTPUT not in placeholders(self.input) | placeholders(self.reference):
            raise ValueError(f"names {{{{{OUTPUT}}}}} neither in 'input' nor in 'reference': every text would score the same")
        return self


class StringCheck(_Grader):
    """OpenAI's string_check: 1 where the input equals the reference (eq), differs from it (ne), contains it (like), or contains
    it whatever the case (ilike)."""

    type: Literal["string_check"]
    operation: Literal["eq", "ne", "like", "ilike"]


_Similarity = Literal["bleu", "fuzzy_match", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"]
_NOT_COMPUTED = ("cosine", "gleu", "meteor")  # OpenAI's others


def _computed(metric: object) -> object:
    if metric in _NOT_COMPUTED:
        raise ValueError(
            f"is '{metric}', which is not computed here; there are {', '.join(get_args(_Similarity))}; or let an endpoint of "
            "yours compute it (type 'endpoint')"
        )
    return metric


class TextSimilarity(_Grader):
    """OpenAI's text_similarity: BLEU; the F measure of ROUGE by words (Lin 2004): of so many words in a row, or rouge_l; or
    fuzzy_match, the characters that need no change to make one text of the other (rapidfuzz's ratio)."""

    type: Literal["text_similarity"]
    evaluation_metric: Annotated[_Similarity, BeforeValidator(_computed)]


class Endpoint(_Metric):
    """OpenAI's endpoint grader: the score, from 0 to 1, is what an HTTP endpoint of yours answers. Each text is posted to it as
    `{"sample": {"output_text": ..., "choices": [...]}, "item": {"prompt": ..., "completion": ...}, "trace_id": ...}`; the
    answer is `{"score": 0.5}`. The service calls it once the texts are there, so the score comes later than others."""

    type: Literal["endpoint"]
    url: Url = Field(description="https, and a host whose every address is public")
    headers: Headers = Field(default={}, description="Sent with each text. Kept sealed; answers show asterisks for the values")
    rate_limit: Annotated[int, Field(ge=1, le=1000, strict=True)] | None = Field(
        default=None, description="The most texts that are sent in a second. Left out, 8 texts of a tenant are sent at once."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_threshold(cls, said: Any) -> Any:
        if isinstance(said, dict) and "pass_threshold" in said:
            raise ValueError("gives 'pass_threshold', but results are means of scores, which nothing passes; leave it out")
        return said


ComputedMetric = (
    ExactMatch | Contains | Regex | Number | JsonValid | JsonSchema | RougeL | Bleu | Chrf | StringCheck | TextSimilarity
)
_OTHER_GRADERS = ("label_model", "multi", "python", "score_model")  # OpenAI's


def _of_known_type(said: object) -> object:
    if isinstance(said, dict) and said.get("type") in _OTHER_GRADERS:
        raise ValueError(
            f"has the type '{said['type']}', a grader of OpenAI's that is not computed here; let an endpoint of yours compute "
            "it (type 'endpoint')"
        )
    return said


TextMetric = Annotated[ComputedMetric | Endpoint, Field(discriminator="type"), BeforeValidator(_of_known_type)]


def _named_apart(metrics: list[TextMetric]) -> list[TextMetric]:
    names = [named(metric) for metric in metrics]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"has two metrics named {', '.join(twice)}; give each a 'name' of its own")
    return metrics


def named(metric: TextMetric) -> str:
    """Under which name the metric's results are reported."""
    return metric.name or metric.type


def _ascending(shares: list[float]) -> list[float]:
    if any(after <= before for before, after in pairwise(shares)):
        raise ValueError("must ascend, each share once, such as [0.25, 0.5, 0.75]")
    return shares


_Share = Annotated[float, Field(gt=0, lt=1), NO_BOOL]


class Evaluation(Strict):
    """Texts that the base, and each job that keeps its adapter, generate for held-out rows, or for the rows of a file: the
    prompt is the row up to its last answer, the reference that answer. A metric's result is the mean over the prompts, from 0
    to 1, higher is better."""

    metrics: Annotated[list[TextMetric], Field(min_length=1, max_length=MOST_METRICS), AfterValidator(_named_apart)]
    file_id: FileId | None = Field(
        default=None,
        description="Rows to generate texts for, of messages or of prompt and completion; left out, validation rows.",
    )
    max_prompts: Annotated[int, Field(ge=1, le=MOST_PROMPTS, strict=True)] = Field(
        default=64, description="Of the file's rows, or of the validation rows, the first ones."
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=8192, strict=True)] = 256
    temperature: Annotated[float, Field(ge=0, le=2), NO_BOOL] = Field(
        default=0.0, description="0: the most probable token each time."
    )
    top_p: Annotated[float, Field(gt=0, le=1), NO_BOOL] = 1.0
    seed: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)] = Field(
        default=0, description="Prompt number n is sampled with the seed plus n."
    )
    stop: Annotated[list[_Text], Field(max_length=MOST_STOPS)] = Field(
        default=[], description="Strings that end a text, which then holds none of them."
    )
    milestones: Annotated[list[_Share], Field(max_length=MOST_MILESTONES), AfterValidator(_ascending)] = Field(
        default=[],
        description="Shares of a job's steps, ascending, at which the jobs that train past their warmup are evaluated with "
        "their weights of then, besides the evaluations at the end. Their tokens are billed like those.",
    )

    @property
    def names(self) -> list[str]:
        """The metrics' names, in order."""
        return [named(metric) for metric in self.metrics]

    @property
    def computed(self) -> list[ComputedMetric]:
        """Those that a worker computes."""
        return [metric for metric in self.metrics if not isinstance(metric, Endpoint)]

    @property
    def endpoints(self) -> list[Endpoint]:
        """Those that the service asks for."""
        return [metric for metric in self.metrics if isinstance(metric, Endpoint)]

    def without_secrets(self) -> Self:
        """The same, with asterisks for the values of headers."""
        hidden = [
            metric.model_copy(update={"headers": dict.fromkeys(metric.headers, HIDDEN)})
            if isinstance(metric, Endpoint) and metric.headers
            else metric
            for metric in self.metrics
        ]
        return self.model_copy(update={"metrics": hidden})

    def milestone_steps(self, first: int, total: int) -> tuple[int, ...]:
        """The milestones of a job of so many steps, each once: from step `first` on, before its end."""
        steps = (max(first, share_of(share, total)) for share in self.milestones)
        return tuple(dict.fromkeys(step for step in steps if step < total))
