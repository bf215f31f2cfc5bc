"""The tokenised preview over HTTP: what a worker would train on, row by row, and what is said of rows that it would cut."""

import json
import shutil
from datetime import UTC, datetime

import pytest
from transformers import AutoTokenizer

from contract.task_spec import TaskSpec
from service.files.row_preview import MAX_ROWS
from service.fleet.models import BaseModel
from tests.service.api import jsonl
from tests.worker.corpus import EXAMPLE_BASE
from worker.data.dataset import load
from worker.data.row_reader import reader_of

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 and 3?"}]
CHAT = {"messages": [*ASKED, {"role": "assistant", "content": "It is 5. 🙂"}]}
TWO_TURNS = {"messages": [*CHAT["messages"], {"role": "user", "content": "and 4?"}, {"role": "assistant", "content": "9"}]}
PAIRS = [{"prompt": f"{n} and 3 are", "completion": f" {n + 3}."} for n in range(8)]
TEXTS = [{"text": "once upon a time"}, {"text": "北京 is a city"}]
PREFERENCES = [
    {
        "input": {"messages": ASKED},
        "preferred_output": [{"role": "assistant", "content": "5"}],
        "non_preferred_output": [{"role": "assistant", "content": "It might be 6"}],
    },
    {"prompt": "2 and 3 are", "chosen": " 5.", "rejected": " 6."},
]


@pytest.fixture(scope="module")
def model(database) -> str:
    """A base whose tokenizer is there; nobody trains it."""
    with database.begin() as session:
        kinds = {"architecture": "LlamaForCausalLM", "parameters": 7, "max_position": 512}
        session.add(BaseModel(name="example", source=str(EXAMPLE_BASE), revision="b" * 64, **kinds))
    return "example"


@pytest.fixture
def ask(tenant, model):
    def asked(content: list[object], **changes: object):
        body = {"file_id": tenant.file(content), "base_model": model, "max_seq_len": 512} | changes
        return tenant.post("/v1/files/preview", json=body)

    return asked


@pytest.mark.parametrize(
    ("rows", "objective"),
    [
        ([CHAT, TWO_TURNS], {}),
        ([TWO_TURNS, CHAT], {"turns": "last"}),
        (PAIRS, {}),
        (TEXTS, {}),
        (PREFERENCES, {"type": "dpo"}),
    ],
)
@pytest.mark.parametrize("max_seq_len", [24, 512])
def test_it_shows_what_a_worker_trains_on(ask, tmp_path, rows, objective, max_seq_len):
    """Compared with the worker's own reading of the file, cut included."""
    answer = ask(rows, objective=objective, max_seq_len=max_seq_len, rows=MAX_ROWS)
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    (tmp_path / "rows.jsonl").write_bytes(jsonl(*rows))
    (tmp_path / "held.jsonl").write_bytes(jsonl(*rows))
    wanted = {"base_model": "b", "dataset": {"file_id": "f"}, "search_space": {"learning_rate": [1e-3]}}
    spec = TaskSpec.model_validate(wanted | {"objective": objective, "training": {"max_seq_len": max_seq_len}})
    reader = reader_of(AutoTokenizer.from_pretrained(EXAMPLE_BASE))
    data = load(spec, tmp_path / "rows.jsonl", tmp_path / "held.jsonl", reader)
    trained = [(example.tokens.tolist(), example.loss_mask.tolist()) for example in data.train.sequences]
    kept = [row for row in shown["rows"] if row["problem"] is None or row["problem"]["code"] == "row_truncated"]
    assert [(s["tokens"], s["learned"]) for row in kept for s in row["sequences"]] == trained
    assert (2 * shown["truncated"], 2 * shown["skipped"]) == (data.truncated, data.skipped)  # the worker read both files
    assert [row["line"] for row in shown["rows"]] == list(range(1, len(rows) + 1))


def test_pieces_are_the_text_and_the_mask_is_the_answer(ask):
    answer = ask([CHAT, TWO_TURNS]).json()
    one, two = answer["rows"]
    (sequence,) = one["sequences"]
    assert sequence["length"] == sequence["trained"] == len(sequence["tokens"]) == len(sequence["pieces"])
    assert "".join(sequence["pieces"]) == AutoTokenizer.from_pretrained(EXAMPLE_BASE).decode(sequence["tokens"])
    assert labels(sequence) == "It is 5. 🙂<|end|>\n"
    assert sequence["labels"] == sum(sequence["learned"])
    assert (sequence["answer"], sequence["truncated"], one["problem"]) == (None, False, None)
    assert labels(two["sequences"][0]) == "It is 5. 🙂<|end|>\n9<|end|>\n"
    assert (answer["object"], answer["revision"], answer["max_seq_len"]) == ("preview", "b" * 64, 512)


def labels(sequence) -> str:
    return "".join(piece for piece, learned in zip(sequence["pieces"], sequence["learned"], strict=True) if learned)


def test_a_preference_shows_both_answers(ask):
    row = ask(PREFERENCES, objective={"type": "dpo"}).json()["rows"][0]
    assert {s["answer"]: labels(s) for s in row["sequences"]} == {"chosen": "5<|end|>\n", "rejected": "It might be 6<|end|>\n"}


def test_rows_from_a_line_on(ask, tenant, model):
    answer = ask(PAIRS, first_line=7, rows=3)
    assert [row["line"] for row in answer.json()["rows"]] == [7, 8]
    beyond = ask(PAIRS, first_line=9)
    assert (beyond.status_code, beyond.json()["errors"][0]["field"]) == (422, "first_line")
    assert "has 8 rows" in beyond.json()["detail"]


def test_a_row_of_many_turns_that_is_cut_before_the_first_says_so(ask):
    asked = {"role": "user", "content": "why " * 50}
    said = ask([{"messages": [asked, {"role": "assistant", "content": "so"}] * 70}], max_seq_len=16).json()
    assert said["rows"][0]["problem"]["code"] == "nothing_to_learn"
    assert "its first 16 tokens of" in said["rows"][0]["problem"]["message"]


def test_a_preference_whose_answers_differ_behind_the_cut_is_left_out(ask):
    row = {"prompt": "why", "chosen": "so " * 20 + "yes", "rejected": "so " * 20 + "no"}
    said = ask([row], objective={"type": "dpo"}, max_seq_len=12).json()
    assert said["rows"][0]["problem"]["code"] == "nothing_to_learn"
    assert "prefer nothing, since both answers are equal" in said["rows"][0]["problem"]["message"]
    assert said["skipped"] == 1


def test_a_row_that_is_cut_says_by_how_much(ask):
    rows = [{"prompt": "", "completion": "word " * 200}, {"prompt": "why " * 50, "completion": "so"}]
    said = ask(rows, max_seq_len=16).json()
    cut, gone = said["rows"]
    assert (cut["problem"]["code"], cut["problem"]["line"], cut["problem"]["field"]) == ("row_truncated", 1, "max_seq_len")
    assert cut["sequences"][0]["trained"] == 16 < cut["sequences"][0]["length"]
    assert f"{cut['sequences'][0]['length']} tokens" in cut["problem"]["message"]
    assert gone["problem"]["code"] == "nothing_to_learn"
    assert (said["truncated"], said["skipped"]) == (2, 1)


def test_a_character_that_the_cut_goes_through_is_shown(ask):
    (sequence,) = ask([{"text": "🙂🙃🙂🙃🙂🙃"}], max_seq_len=10).json()["rows"][0]["sequences"]
    assert len(sequence["pieces"]) == 10
    assert sequence["pieces"][-1]


def test_what_does_not_fit_is_said_at_once(ask, tenant, model):
    answer = ask(PREFERENCES, base_model="exampel", max_seq_len=600)
    assert [(e["field"], e["code"]) for e in answer.json()["errors"]] == [
        ("file_id", "format_of_other_objective"),
        ("base_model", "model_unknown"),
    ]
    assert "did you mean 'example'?" in answer.text
    too_long = ask(PAIRS, max_seq_len=600).json()["errors"]
    assert [(e["field"], e["code"]) for e in too_long] == [("max_seq_len", "beyond_model")]
    mistyped = ask(PAIRS, max_seq_length=100)
    assert (mistyped.status_code, "max_seq_len" in mistyped.json()["detail"]) == (422, True)
    assert ask(PAIRS, rows=MAX_ROWS + 1).json()["errors"][0]["field"] == "rows"


def test_another_tenants_file_is_unknown(ask, new_tenant, model):
    theirs = new_tenant().file(PAIRS)
    answer = ask(PAIRS, file_id=theirs)
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "file_unknown")


def test_a_model_without_a_usable_tokenizer_is_named(ask, tenant, database, small_model, tmp_path):
    answer = ask(PAIRS, base_model="small")
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "tokenizer_unusable")
    for name, change in (("torn", lambda text: text[: len(text) // 2]), ("other", lambda text: json.dumps({"version": "?"}))):
        folder = tmp_path / name
        shutil.copytree(EXAMPLE_BASE, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        (folder / "tokenizer.json").write_text(change((folder / "tokenizer.json").read_text()))
        with database.begin() as session:
            kinds = {"architecture": "LlamaForCausalLM", "parameters": 7, "max_position": 512}
            session.add(BaseModel(name=f"{name}-{tenant.tenant_id}", source=str(folder), revision="c" * 64, **kinds))
        answer = ask(PAIRS, base_model=f"{name}-{tenant.tenant_id}")
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "tokenizer_unusable")


def test_a_template_that_fails_is_the_rows_problem(ask, tenant, database, tmp_path):
    folder = tmp_path / "strict"
    shutil.copytree(EXAMPLE_BASE, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "chat_template.jinja").write_text("{{ raise_exception('only questions') }}")
    with database.begin() as session:
        kinds = {"architecture": "LlamaForCausalLM", "parameters": 7, "max_position": 512}
        session.add(BaseModel(name=f"strict-{tenant.tenant_id}", source=str(folder), revision="d" * 64, **kinds))
    (row,) = ask([CHAT], base_model=f"strict-{tenant.tenant_id}").json()["rows"]
    assert (row["sequences"], row["problem"]["code"], row["problem"]["field"]) == ([], "template_failed", "messages")
    assert "only questions" in row["problem"]["message"]


def test_a_conversation_of_endless_turns_is_left_out(ask):
    """It is written once for each turn, so that its cost is the square of its length."""
    turns = [m for n in range(800) for m in ({"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}."})]
    endless, short = ask([{"messages": turns}, CHAT]).json()["rows"]
    assert (endless["sequences"], endless["problem"]["code"]) == ([], "preview_too_large")
    assert short["problem"] is None


def test_a_template_writes_the_date_that_is_asked_for_and_else_today(tenant, database, tmp_path, ask):
    folder = tmp_path / "dated"
    shutil.copytree(EXAMPLE_BASE, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    template = folder / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d.%m.%Y %H') }} " + template.read_text())
    with database.begin() as session:
        kinds = {"architecture": "LlamaForCausalLM", "parameters": 7, "max_position": 512}
        session.add(BaseModel(name="dated", source=str(folder), revision="c" * 64, **kinds))

    def begins(**said: str) -> str:
        answer = ask([CHAT], base_model="dated", **said)
        assert answer.status_code == 200, answer.text
        return "".join(answer.json()["rows"][0]["sequences"][0]["pieces"])

    assert begins(created_at="2026-05-06T23:30:00-02:00").startswith("07.05.2026 01 ")
    before = datetime.now(UTC)
    assert begins()[:13] in {moment.strftime("%d.%m.%Y %H") for moment in (before, datetime.now(UTC))}
    for wrong in ("2026-05-06T23:30:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        answer = ask([CHAT], created_at=wrong)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "created_at")
