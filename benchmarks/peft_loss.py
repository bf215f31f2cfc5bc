"""An adapter's loss by PEFT on the plain base: what it is worth to who has nothing of Motet."""

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from worker.model.example import Example


@torch.no_grad()
def peft_loss(base: Path, adapter: Path, rows: Sequence[Example], device: torch.device) -> float:
    """Mean loss of the rows' labels by PEFT on the plain base, in bf16 (float32 on a CPU), row by row."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=dtype).to(device), adapter).eval()
    total, labels = 0.0, 0
    for row in rows:
        tokens = torch.tensor(row.tokens, device=device, dtype=torch.long)
        learned = torch.tensor(row.loss_mask, device=device)[1:]
        logits = model(input_ids=tokens[None]).logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(logits[learned], tokens[1:][learned], reduction="sum").item()
        labels += int(learned.sum())
    return total / labels
