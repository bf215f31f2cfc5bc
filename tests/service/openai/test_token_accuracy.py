"""Accuracies of curves under OpenAI's names: of tokens under sft alone, null where a worker sends none."""

import pytest

from service.http.openai_ids import own_id
from tests.service.fleet.scripted import completed, moved, points

PAIRS = b'{"prompt": "2 + 3?", "chosen": "5", "rejected": "6"}\n' * 20
NAMES = ("train_mean_token_accuracy", "valid_mean_token_accuracy")


@pytest.mark.parametrize(
    ("method", "told", "wanted", "rows"),
    [
        ("supervised", True, (0.5, 0.75), ["0,1,3.0,,0.25,", "0,2,2.5,2.0,0.5,0.75"]),
        ("supervised", False, (None, None), ["0,1,3.0,,,", "0,2,2.5,2.0,,"]),
        ("dpo", True, (None, None), ["0,1,3.0,,,", "0,2,2.5,2.0,,"]),
    ],
)
def test_accuracies_are_told_of_tokens_alone(tenant, new_node, plan, method, told, wanted, rows):
    node = new_node()
    pairs = tenant.post("/v1/files", files={"file": ("pairs.jsonl", PAIRS)}).json()["id"]
    body = {"model": "small", "training_file": pairs if method == "dpo" else tenant.file(), "method": {"type": method}}
    one = {"method": "list", "jobs": [{"learning_rate": 1e-4}]}
    job = tenant.post("/openai/v1/fine_tuning/jobs", json=body | {"search_space": one}).json()["id"]
    plan()
    taken = node.take(own_id(job))
    losses = points(0, [1, 2], [3.0, 2.5]), points(0, [2], [2.0], "val_loss")
    accuracies = points(0, [1, 2], [0.25, 0.5], "train_accuracy"), points(0, [2], [0.75], "val_accuracy")
    taken.report(taken.attached(), moved(0, "warmup"), *losses, *(accuracies if told else ()))
    events = tenant.get(f"/openai/v1/fine_tuning/jobs/{job}/events").json()["data"]
    metrics = next(event for event in events if event["type"] == "metrics")["data"]
    assert (metrics["step"], metrics["train_loss"], metrics["valid_loss"]) == (2, 2.5, 2.0)
    assert tuple(metrics[name] for name in NAMES) == wanted
    taken.report(taken.adapter(0, 1.25), completed(0))
    metrics, *_ = tenant.get(f"/openai/v1/fine_tuning/jobs/{job}").json()["result_files"]
    table = tenant.get(f"/openai/v1/files/{metrics}/content").text.splitlines()
    assert table == ["job,step,train_loss,valid_loss,train_accuracy,valid_mean_token_accuracy", *rows]
