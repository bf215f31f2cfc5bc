"""Renders the README of a merged model: what was added to what. Pure."""

from contract.messages.placement_messages import HUB_SCHEME
from service.database.checked_json import required
from service.fleet.models import BaseModel
from service.merges.models import MergedModel


def readme(merged: MergedModel, base: BaseModel) -> str:
    """Markdown, with a model card's header. It says the same whenever and by whichever node the model is merged.
    Raises ResultUnreadable."""
    repository = base.source.removeprefix(HUB_SCHEME) if base.source.startswith(HUB_SCHEME) else None
    header = ["---", "library_name: transformers", *([f"base_model: {repository}"] if repository is not None else []), "---"]
    facts = [
        ("base model", f"`{base.name}`" + (f" ({repository}, commit `{base.commit}`)" if repository is not None else "")),
        ("revision of its weights", f"`{merged.base_revision}`"),
        *((noun, f"`{merged.lineage[field]}`") for noun, field in _MADE_BY if merged.lineage.get(field)),
        ("adapter", f"`{merged.adapter_id}`"),
        *((file.path, f"sha256 `{file.sha256}`") for file in required(merged.adapter_files, f"{merged.id}: ")),
    ]
    said = "The weights are those of the base with the adapter added: W + scale B A, summed in float32 and rounded to bf16."
    terms = "The terms of the base's licence hold for it."
    listed = "\n".join(f"- {name}: {value}" for name, value in facts)
    return "\n".join(header) + f"\n\n# {base.name} with adapter {merged.adapter_id}\n\n{said} {terms}\n\n{listed}\n"


_MADE_BY = (("task", "task_id"), ("job", "job_id"))
