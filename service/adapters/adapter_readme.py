"""Renders the README in an adapter's archive: its lineage, the search, its loss curve, texts that it writes, how to load it.

Rendered from rows on request, and only for a task that has ended, so it never changes. Pure.
"""

import re
from collections.abc import Mapping, Sequence

from contract.compatibility.lenient_documents import value_of
from contract.states import JobStatus
from contract.task_spec import Precision
from contract.wording.config_labels import HEADINGS, digits_of, label, varying
from contract.wording.generated_text_words import shortened
from contract.wording.row_words import overlap_sentence
from service.adapters.models import Adapter
from service.tasks.best_job import best_first
from service.tasks.curves.curve_reader import Curve
from service.tasks.job_resource import JobResource
from service.tasks.models import Task
from service.tasks.selection import Selection, selection_of
from service.tasks.text_evaluations import TextEvaluationResource, TextScores

NAME = "README.md"
_CURVE_POINTS = 20
_BAR = 40  # characters of the longest bar
_SAMPLES = 3  # prompts whose texts are shown
_VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_LONGEST = 600  # characters shown of a prompt, a reference and a text
_MESSAGES = """question = [{"role": "user", "content": "..."}]
asked = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True, return_tensors="pt")"""
_PROMPT = 'asked = tokenizer("...", return_tensors="pt")  # written as the prompts of its rows'
_HELD: Mapping[Precision, str] = {
    "bf16": "bf16",
    "nf4": "NF4, 4 bits a number (QLoRA); the adapter itself is plain LoRA in float32",
    "nf4_double": "NF4 with scales in 8 bits (QLoRA, double quantisation); the adapter itself is plain LoRA in float32",
    "fp8": "fp8, e4m3 with a scale a row; the adapter itself is plain LoRA in float32, for the base as it is",
}


def readme(
    task: Task,
    adapter: Adapter,
    jobs: Sequence[JobResource],
    rows: str,
    validation: Curve | None,
    scores: Sequence[TextScores] = (),
    samples: Sequence[TextEvaluationResource] = (),
) -> str:
    """The README as Markdown. `rows`: the format of the rows that it was trained on; `validation`: the validation loss curve of
    the adapter's own job; `scores`: of all that were evaluated; `samples`: texts of the base and of the adapter's own job."""
    manifest = adapter.trained
    lineage = manifest.lineage
    own = next(job for job in jobs if job.id == adapter.job_id)
    rank, precision = value_of(lineage.config, "rank"), task.precision
    base_loss = f"{task.base_val_loss:.4f}" if task.base_val_loss is not None else "not measured"
    title = f"# {task.name or task.id}, configuration {own.index}"
    facts = [
        ("base model", f"`{lineage.base_model}`, revision `{lineage.base_revision[:16]}`"),
        ("validation loss", f"{adapter.val_loss:.4f} {manifest.taken}; the base alone: {base_loss}"),
        ("configuration", label(own.config, list(HEADINGS), digits_of(job.config for job in jobs))),
        ("base held in", _HELD[precision]),
        ("data set", f"sha256 `{lineage.dataset_sha256[:16]}`"),
        ("task, job, adapter", f"`{task.id}`, `{own.id}`, `{adapter.id}`"),
    ]
    if said := overlap_sentence(task.overlap_rows, task.validation_rows):
        facts.append(("validation rows", said))
    loading = _loading(lineage.base_model, adapter.id, manifest.peft_rank or rank, precision, rows)
    parts = [title, "\n".join(f"- {name}: {value}" for name, value in facts)]
    if (selection := selection_of(task)) is not None:
        parts.append(_chosen(selection, task.winner_job_id == own.id))
    parts.append(loading)
    if validation is not None and validation.steps:
        parts.append(_curve(validation, task.trend_rows, task.validation_rows))
    if any(one.scores for one in scores):
        parts.append(_scores(scores, own.index))
    if selection is not None and task.winner_job_id == own.id:
        parts += _against_base(selection)
    parts += [_sample(samples, place) for place in range(min(_SAMPLES, max((len(one.samples) for one in samples), default=0)))]
    parts.append(_table(jobs, own.index, task.winner_job_id))
    return "\n\n".join(parts) + "\n"


def _chosen(selection: Selection, winner: bool) -> str:
    """How the search's winner was chosen, and what to try next."""
    of = "" if winner else " This adapter is of another configuration than the best."
    lines = ["## How it was chosen", "", f"{selection.verdict[:1].upper()}{selection.verdict[1:]}.{of} Intervals are of 95 %."]
    tips = ["", "What to try next:", "", *(f"- {tip}" for tip in selection.suggestions)]
    return "\n".join([*lines, *(tips if selection.suggestions else [])])


def _loading(base: str, folder: str, rank: int | None, precision: Precision, rows: str) -> str:
    if precision in ("bf16", "fp8"):
        imports, load = "AutoModelForCausalLM, AutoTokenizer", "AutoModelForCausalLM.from_pretrained(BASE)"
    else:
        imports, double = "AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig", precision == "nf4_double"
        config = f'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant={double})'
        load = f"AutoModelForCausalLM.from_pretrained(BASE, quantization_config={config})"
    asking = _PROMPT if rows in ("completion", "text") else _MESSAGES
    if rows == "preference":
        asking += f"\n# where prompts are texts, not messages: {_PROMPT}"
    return f"""## Load it

Set `BASE` to where the weights of `{base}` lie: a folder, or a name on a hub. The service's administrator knows which; for the
example that `motet up` brings it is the folder `examples/base-model`. `{folder}` is this folder.

```python
from peft import PeftModel
from transformers import {imports}

BASE = "..."  # where the weights of {base} lie
model = PeftModel.from_pretrained({load}, "{folder}")
tokenizer = AutoTokenizer.from_pretrained(BASE)
{asking}
print(tokenizer.decode(model.generate(**asked, max_new_tokens=100)[0][asked["input_ids"].shape[1] :]))
```

{served(folder, rank)}"""


def served(folder: str, rank: int | None) -> str:
    """How vLLM serves an adapter of this rank, as Markdown. rank: None where it is not known."""
    if rank is None:
        return "The rank in its lineage cannot be read: give vLLM the `r` of its adapter_config.json (docs/SERVING.md)."
    if rank > _VLLM_RANKS[-1]:
        return f"vLLM serves no adapter of rank {rank}, only up to {_VLLM_RANKS[-1]}; take a merged model (docs/SERVING.md)."
    return f"""```bash
vllm serve BASE --enable-lora --max-lora-rank {vllm_rank(rank)} --lora-modules {folder}={folder}
```

`{folder}` is then the `model` of requests. Where vLLM looks for adapters in a folder (docs/SERVING.md of Motet), put this one
there; its name is the `model`."""


def vllm_rank(rank: int) -> int:
    """The smallest --max-lora-rank of vLLM that fits this rank."""
    return next(offered for offered in _VLLM_RANKS if offered >= rank)


def _curve(curve: Curve, trend: int | None, rows: int | None) -> str:
    """trend: how many of the validation rows, the first, its points read; None: all."""
    known = [(step, value) for step, value in zip(curve.steps, curve.values, strict=True) if value is not None]
    every = max(1, -(-len(known) // _CURVE_POINTS))
    shown = known[::every] if not known or known[::every][-1] == known[-1] else [*known[::every], known[-1]]
    top = max((value for _, value in shown), default=1.0) or 1.0
    lines = [f"{step:>8}  {value:8.4f}  {'#' * max(1, round(_BAR * value / top))}" for step, value in shown]
    apart = trend is not None and rows is not None and trend < rows
    said = f"Each point reads the first {trend} of the {rows} validation rows; the loss above reads all of them.\n\n"
    return f"## Its validation loss\n\n{said * apart}```text\n    step      loss\n" + "\n".join(lines) + "\n```"


def _scores(evaluations: Sequence[TextScores], own: int) -> str:
    """Its texts' scores beside the base's and the other configurations'."""
    names = sorted({name for one in evaluations for name in one.scores})
    rows = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for one in evaluations:
        whose = "the base alone" if one.index is None else f"job {one.index}" + " (this one)" * (one.index == own)
        rows.append(f"| {whose} | " + " | ".join(f"{one.scores[n]:.4f}" if n in one.scores else "" for n in names) + " |")
    prompts = max(one.prompts for one in evaluations)
    return f"## Its texts\n\nMeans over {prompts} prompts, higher is better.\n\n" + "\n".join(rows)


def _sample(evaluations: Sequence[TextEvaluationResource], place: int) -> str:
    """One prompt, what its row answers, and what the base and the adapter write."""
    asked = [(one.index, one.samples[place]) for one in evaluations if place < len(one.samples)]
    first = asked[0][1]
    lines = [f"Prompt {place + 1}:", _fenced(first.prompt, keep_end=True), "Reference:", _fenced(first.reference)]
    for index, sample in asked:
        said = ", ".join(f"{name} {score:.4f}" for name, score in sorted(sample.scores.items()))
        whose = "The base alone" if index is None else "This adapter"
        lines += [f"{whose}{f' ({said})' if said else ''}:", _fenced(sample.text)]
    return "\n\n".join(lines)


def _fenced(text: str, keep_end: bool = False) -> str:
    """A code block of the text or, where it is long, of its beginning or its end. No text can close the block: its fence is
    longer than any run of backticks in it."""
    text = shortened(text, _LONGEST, keep_end)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _against_base(selection: Selection) -> list[str]:
    """On how many prompts its texts are better than the base's; nothing where none were scored."""
    lines = [f"- {one.sentence[:1].upper()}{one.sentence[1:]}." for one in selection.pairwise]
    return ["Prompt by prompt, with intervals of 95 %:\n\n" + "\n".join(lines)] if lines else []


def _table(jobs: Sequence[JobResource], own: int, winner_job_id: str | None) -> str:
    """A table of all configurations, best first."""
    ranked = sorted(jobs, key=lambda job: best_first(job, winner_job_id))
    axes, digits = varying(job.config for job in jobs), digits_of(job.config for job in jobs)
    rows = ["| job | configuration | steps | end | best validation loss |", "|---|---|---|---|---|"]
    for job in ranked:
        end = job.exit.reason if job.exit is not None else job.status
        loss = f"{job.best_val_loss:.4f}" if job.best_val_loss is not None else ""
        mark = " (this one)" if job.index == own else ""
        rows.append(
            f"| {job.index}{mark} | {label(job.config, axes, digits)} | {job.step}/{job.total_steps or '?'} | {end} | {loss} |"
        )
    early = sum(job.status == JobStatus.EXITED for job in jobs)
    return f"## The search\n\n{len(jobs)} configurations, {early} of them stopped early.\n\n" + "\n".join(rows)
