"""Loads an adapter with PEFT on its plain base, asks it something, and recomputes validation losses. Knows nothing of Motet.

    python examples/use_adapter.py my-adapter --ask "Tom has 3 apples and buys 4. How many has he now?"
    python examples/use_adapter.py my-adapter --rows examples/gsm8k/validation.jsonl

The loss is what Motet reports: mean nats per token of the assistant's turns, over all rows (chat rows of one question and one
answer here). `--json` prints one line for programs.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")  # before torch: else the bits of a product depend on addresses

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = Path(__file__).parent / "base-model"


def validation_loss(model: Any, tokenizer: Any, rows: Path) -> float:
    """Mean of -log p over every token that comes after the template's generation prompt."""
    total, labels = 0.0, 0
    for line in rows.read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]
        question = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        whole = tokenizer.apply_chat_template(messages, return_dict=False)
        if whole[: len(question)] != question:
            raise SystemExit("this chat template writes a question differently once it is answered; such rows need more care")
        tokens = torch.tensor([whole])
        with torch.no_grad():
            log_p = model(input_ids=tokens).logits[0, :-1].float().log_softmax(-1)
        answer = log_p.gather(1, tokens[0, 1:, None])[len(question) - 1 :]
        total, labels = total - float(answer.sum()), labels + len(answer)
    return total / labels


def answer(model: Any, tokenizer: Any, question: str) -> str:
    """The most likely answer, at most 80 tokens of it."""
    chat = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        said = model.generate(**prompt, max_new_tokens=80, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    return str(tokenizer.decode(said, skip_special_tokens=True)).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Use a LoRA adapter with transformers and PEFT.")
    parser.add_argument("adapter", type=Path, help="folder of adapter_config.json and adapter_model.safetensors")
    parser.add_argument("--base", type=Path, default=BASE, help="the base it was trained on (default: the example's)")
    parser.add_argument("--rows", type=Path, help="chat JSONL to recompute the validation loss over")
    parser.add_argument("--ask", help="a question to answer, with the adapter and without")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of sentences")
    arguments = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(arguments.base)
    plain = AutoModelForCausalLM.from_pretrained(arguments.base, dtype=torch.float32)
    model = PeftModel.from_pretrained(plain, str(arguments.adapter)).eval()
    found: dict[str, float | str] = {}
    if arguments.rows is not None:
        found["adapter_loss"] = validation_loss(model, tokenizer, arguments.rows)
        with model.disable_adapter():
            found["base_loss"] = validation_loss(model, tokenizer, arguments.rows)
    if arguments.ask is not None:
        found["adapter_answer"] = answer(model, tokenizer, arguments.ask)
        with model.disable_adapter():
            found["base_answer"] = answer(model, tokenizer, arguments.ask)
    print(
        json.dumps(found)
        if arguments.json
        else "\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in found.items())
    )


if __name__ == "__main__":
    main()
