"""The model card of an adapter that goes to the hub: a README with the front matter that hubs read. Pure."""

from huggingface_hub import ModelCardData

from contract.messages.adapter_manifest import AdapterManifest
from service.adapters.models import Adapter


def model_card(adapter: Adapter, base: str | None, text: str | None) -> bytes:
    """Markdown. base: the base's repository on the hub; None where it is not known, since the hub takes no other name. text:
    the adapter's README, where it has one."""
    said = ModelCardData(
        base_model=base, library_name="peft", pipeline_tag="text-generation", tags=["lora"], ignore_metadata_errors=False
    )
    return f"---\n{said.to_yaml()}\n---\n\n{text if text is not None else _facts(adapter)}".encode()


def _facts(adapter: Adapter) -> str:
    """Of an adapter without a README: one that was uploaded, or whose task has not ended."""
    manifest = adapter.folder
    lineage = manifest.lineage
    facts = [("base model", f"`{lineage.base_model}`, revision `{lineage.base_revision[:16]}`")]
    if isinstance(manifest, AdapterManifest):
        facts.append(("validation loss", f"{manifest.val_loss:.4f} {manifest.taken}"))
    listed = "\n".join(f"- {name}: {value}" for name, value in facts)
    name = " ".join((adapter.name or adapter.id).split())
    return f"# {name}\n\nA LoRA adapter in PEFT's format.\n\n{listed}\n"
