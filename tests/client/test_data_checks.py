"""What `motet submit` finds wrong with files and base before it uploads anything."""

import gzip
import json
import tracemalloc
from codecs import BOM_UTF8
from pathlib import Path

import pytest
from motet.specs.data_checks import DataError, check

from contract.task_spec import TaskSpec

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
PAIR = {"prompt": "hi", "chosen": "hello", "rejected": "no"}


def spec(objective: str = "sft") -> TaskSpec:
    return TaskSpec.model_validate(
        {
            "base_model": "example-7m",
            "dataset": {"file_id": "not uploaded yet"},
            "objective": {"type": objective},
            "search_space": {"learning_rate": [1e-3]},
        }
    )


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_good_files_pass(tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.jsonl", CHAT, {"prompt": "a", "completion": "b"})
    check(spec(), {"file_id": rows}, ["example-7m"])
    (tmp_path / "bom.jsonl").write_bytes(BOM_UTF8 + b"\n" + rows.read_bytes().replace(b"\n", b"\n\n"))
    check(spec(), {"file_id": tmp_path / "bom.jsonl"}, ["example-7m"])
    pairs = written(tmp_path / "pairs.jsonl", PAIR, PAIR | {"prompt": "other"})
    check(spec("dpo"), {"file_id": pairs}, ["example-7m"])


@pytest.mark.parametrize(
    ("content", "objective", "says"),
    [
        (b"", "sft", "has no rows"),
        (b"\n \n", "sft", "has no rows"),
        (b'{"instruction": "a", "input": "b", "output": "c"}\n', "sft", "line 1 is an instruction row; write it as"),
        (b'{"prompt": "a"\n', "sft", "line 1 is not JSON"),
        (b'\n  {"prompt": "a\n', "sft", "line 2 is not JSON: Unterminated string starting at column 14; each line is one row"),
        (
            '{"prompt": "Où?", "completion": "b"}\n'.encode("latin-1"),
            "sft",
            "line 1 is not UTF-8: invalid start byte at byte 14 of the line; save the file as UTF-8",
        ),
        (gzip.compress(json.dumps(CHAT).encode()), "sft", "rows.jsonl: is gzip; a data set is JSON Lines in UTF-8"),
        (json.dumps([CHAT, CHAT]).encode(), "sft", "is a list in JSON; a data set is JSON Lines"),
        (json.dumps(CHAT).encode("utf-16"), "sft", "is UTF-16; a data set is JSON Lines in UTF-8"),
        (b'{"conversations": [{"from": "human", "value": "a"}]}', "sft", "line 1 is a ShareGPT row; write it as a chat row"),
        (
            json.dumps(CHAT).encode() * 2,
            "sft",
            "line 1 holds more than one object: another begins at column 93; write each row",
        ),
        (
            json.dumps({"data": [CHAT]}).encode(),
            "sft",
            """line 1 holds a list of objects in 'data'; where these are the rows""",
        ),
        (json.dumps(CHAT).encode() + b"\n[1]\n", "sft", "line 2 is not a JSON object"),
        (json.dumps(CHAT).encode() + b"\n" + json.dumps(CHAT).encode(), "sft", "all rows are the same"),
        (json.dumps(PAIR).encode(), "sft", "line 1 is no row for objective sft"),
        (json.dumps(CHAT).encode(), "dpo", "line 1 is no row for objective dpo"),
    ],
)
def test_what_is_wrong_names_the_file(tmp_path: Path, content: bytes, objective: str, says: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        check(spec(objective), {"file_id": path}, ["example-7m"])
    assert "nothing was uploaded" in str(refused.value)
    assert str(path) in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize(("begins", "says"), [(b"[", "is a list in JSON"), (b'{"data": [', "line 1 has more than 64 MiB")])
def test_a_file_of_one_endless_line_is_not_read_whole(tmp_path: Path, begins: bytes, says: str) -> None:
    path = tmp_path / "rows.json"
    with path.open("wb") as file:
        file.write(begins)
        file.truncate(2**31)
    tracemalloc.start()
    with pytest.raises(DataError, match=says):
        check(spec(), {"file_id": path}, ["example-7m"])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**29


def test_a_file_of_csv_is_to_be_converted(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,completion\na,b\n")
    with pytest.raises(DataError, match="is CSV; a data set is JSON Lines in UTF-8, one example a line: convert it first"):
        check(spec(), {"file_id": path}, ["example-7m"])
    written(path, CHAT, {"prompt": "a", "completion": "b"})  # its rows count, whatever its name
    check(spec(), {"file_id": path}, ["example-7m"])


def test_an_unknown_base_is_told_beside_what_the_files_lack(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text("")
    with pytest.raises(DataError) as refused:
        check(spec(), {"file_id": path}, ["example-7n", "other"])
    assert "did you mean 'example-7n'?" in str(refused.value)
    assert "has no rows" in str(refused.value)


def test_equal_rows_are_enough_where_another_file_validates(tmp_path: Path) -> None:
    train, held_out = written(tmp_path / "a.jsonl", CHAT, CHAT), written(tmp_path / "b.jsonl", CHAT)
    given = spec().model_copy(update={"dataset": spec().dataset.model_copy(update={"validation_file_id": "b"})})
    check(given, {"file_id": train, "validation_file_id": held_out}, ["example-7m"])
