"""Validation loss by transformers and PEFT alone: mean nats per assistant token over chat rows. Knows nothing of Motet.

Prints {"base": ..., "adapter": ...}; arguments: base folder, adapter folder, rows.jsonl.
"""

import json
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base, adapter, rows = sys.argv[1:]
torch.set_num_threads(2)
tokenizer = AutoTokenizer.from_pretrained(base)
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).eval()


def loss() -> float:
    total, labels = 0.0, 0
    with open(rows) as lines:
        for line in lines:
            messages = json.loads(line)["messages"]
            assert [m["role"] for m in messages] == ["user", "assistant"]
            prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
            whole = tokenizer.apply_chat_template(messages, return_dict=False)
            assert whole[: len(prompt)] == prompt
            tokens = torch.tensor([whole])
            with torch.no_grad():
                log_p = model(tokens).logits[0, :-1].double().log_softmax(-1)
            picked = log_p.gather(1, tokens[0, 1:, None])[len(prompt) - 1 :, 0]
            total, labels = total - picked.sum().item(), labels + len(picked)
    return total / labels


with_adapter = loss()
with model.disable_adapter():
    without = loss()
print(json.dumps({"base": without, "adapter": with_adapter}))
