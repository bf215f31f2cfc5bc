"""Loads an adapter with PEFT on its plain base: answers with it and without, and recomputes losses. Knows nothing of Motet.

    python examples/use_adapter.py my-adapter --ask "name: Zizzi
    food: Italian
    area: riverside"
    python examples/use_adapter.py my-adapter --rows examples/restaurants/validation.jsonl --show 3

The loss is what Motet reports: mean nats per token of the assistant's turns, over all rows (chat rows of one question and one
answer here). `facts said` counts the values of a question (`field: value` lines, yes and no aside) that an answer has word for
word.
`--json` prints one line for programs.
"""

import argparse
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")  # before torch: else the bits of a product depend on addresses

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = Path(__file__).parent / "base-model"


def chats(rows: Path) -> list[list[dict[str, Any]]]:
    """The messages of each row. Exits where a row has none."""
    found = [json.loads(line) for line in rows.read_text(encoding="utf-8").split("\n") if line.strip()]
    for number, row in enumerate(found, 1):
        if "messages" not in row:
            raise SystemExit(
                f"row {number} of {rows} has no messages; --rows takes chat rows alone, and this one has: {', '.join(row)}"
            )
    return [row["messages"] for row in found]


def validation_loss(model: Any, tokenizer: Any, rows: list[list[dict[str, Any]]]) -> float:
    """Mean of -log p over every token that comes after the template's generation prompt."""
    total, labels = 0.0, 0
    for messages in rows:
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
    """The most likely answer, at most 60 tokens of it."""
    chat = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        said = model.generate(**prompt, max_new_tokens=60, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    return str(tokenizer.decode(said, skip_special_tokens=True)).strip()


def facts_said(question: str, said: str) -> tuple[int, int]:
    """How many of the question's values the answer has, and how many there are."""
    values = [line.partition(": ")[2].lower() for line in question.splitlines() if ": " in line]
    values = [value for value in values if value not in ("yes", "no")]
    return sum(value in said.lower() for value in values), len(values)


def answers(model: Any, tokenizer: Any, questions: list[str]) -> tuple[list[str], float]:
    """What the model says to each question, and the part of all facts that it says."""
    said = [answer(model, tokenizer, question) for question in questions]
    counts = [facts_said(question, one) for question, one in zip(questions, said, strict=True)]
    return said, sum(count for count, _ in counts) / max(1, sum(total for _, total in counts))


def main() -> None:
    parser = argparse.ArgumentParser(description="Use a LoRA adapter with transformers and PEFT.")
    parser.add_argument("adapter", type=Path, help="folder of adapter_config.json and adapter_model.safetensors")
    parser.add_argument("--base", type=Path, default=BASE, help="the base it was trained on (default: the example's)")
    parser.add_argument("--rows", type=Path, help="chat JSONL to recompute the validation loss over")
    parser.add_argument("--show", type=int, default=0, help="answer the questions of this many of the rows, too")
    parser.add_argument("--ask", help="a question to answer, with the adapter and without")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of sentences")
    arguments = parser.parse_args()

    rows = chats(arguments.rows) if arguments.rows is not None else []
    tokenizer = AutoTokenizer.from_pretrained(arguments.base)
    plain = AutoModelForCausalLM.from_pretrained(arguments.base, dtype=torch.float32)
    model = PeftModel.from_pretrained(plain, str(arguments.adapter)).eval()
    questions = [arguments.ask] if arguments.ask is not None else []
    questions += [messages[0]["content"] for messages in rows[: arguments.show]]
    found: dict[str, Any] = {"questions": questions}
    for name, without in (("adapter", nullcontext()), ("base", model.disable_adapter())):
        with without:
            if rows:
                found[f"{name}_loss"] = validation_loss(model, tokenizer, rows)
            found[f"{name}_answers"], found[f"{name}_facts_said"] = answers(model, tokenizer, questions)
    print(json.dumps(found) if arguments.json else told(found))


def told(found: dict[str, Any]) -> str:
    lines = []
    for question, base, adapter in zip(found["questions"], found["base_answers"], found["adapter_answers"], strict=True):
        lines += [question, f"  the base:    {' '.join(base.split())}", f"  the adapter: {adapter}", ""]
    for name, value in found.items():
        if isinstance(value, float):
            lines.append(f"{name.replace('_', ' ')}: {value:.4f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
