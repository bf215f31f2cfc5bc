"""Specs as people write them: each mistake has its line, before anything is uploaded."""

from pathlib import Path

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from motet.specs.spec_file import SpecError, json_schema, read

ROOT = Path(__file__).parents[2]

GOOD = """\
name: a search
base_model: some-base
dataset:
  file: rows.jsonl
search_space:
  learning_rate: [1e-4, .5, 1, 2.5e-3]
  rank: [8]
"""


def write(folder: Path, text: str) -> Path:
    (folder / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (folder / "spec.yaml").write_text(text)
    return folder / "spec.yaml"


def mistakes(folder: Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        read(write(folder, text))
    return str(caught.value)


def test_a_path_becomes_an_upload(tmp_path: Path) -> None:
    draft = read(write(tmp_path, GOOD))
    assert draft.files == {"file_id": tmp_path / "rows.jsonl"}
    spec = draft.with_files({"file_id": "file_1"})
    assert spec.dataset.file_id == "file_1"
    assert spec.search_space.learning_rate == [1e-4, 0.5, 1.0, 2.5e-3]


def test_a_single_value_may_stand_without_its_list(tmp_path: Path) -> None:
    text = GOOD.replace("[1e-4, .5, 1, 2.5e-3]", "1e-3").replace(
        "[8]", "8\n  target_modules: [q_proj, v_proj]\n  schedule: cosine"
    )
    space = read(write(tmp_path, text)).with_files({"file_id": "file_1"}).search_space
    assert (space.learning_rate, space.rank, space.schedule) == ([1e-3], [8], ["cosine"])
    assert space.target_modules == [("q_proj", "v_proj")]


def test_an_upload_may_be_named_instead(tmp_path: Path) -> None:
    draft = read(write(tmp_path, GOOD.replace("file: rows.jsonl", "file_id: file_7")))
    assert draft.files == {}
    assert draft.with_files({}).dataset.file_id == "file_7"


def test_the_examples_own_spec_is_right() -> None:
    draft = read(ROOT / "examples" / "spec.yaml")
    assert set(draft.files) == {"file_id", "validation_file_id"}
    assert draft.with_files(dict.fromkeys(draft.files, "file_1")).search_space.size >= 12


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("rank: [8]", "rank: [8, 0]"), "line 7, search_space.rank[1]: should be greater than or equal to 1, got 0"),
        (("rank: [8]", "ranks: [8]"), "line 7, search_space.ranks: is not a known field; did you mean 'rank'?"),
        (("[1e-4, .5,", "[1e-4, -.5,"), "line 6, search_space.learning_rate[1]: should be greater than 0, got -0.5"),
        (("[1e-4, .5,", "[.nan, .5,"), "line 6, search_space.learning_rate[0]: should be a finite number, got nan"),
        (("rank: [8]", "rank: {a: 8}"), "line 7, search_space.rank: must be a list, such as [...]"),
        (("rank: [8]", "warm_start: a"), "line 7, search_space.warm_start: is not a known field"),
        (
            ("base_model: some-base", "base_model: b\nwarm_start: a"),
            "line 3, warm_start: must be an object with fields of adapter_id",
        ),
        (
            ("[8]", "[8]\n  target_modules: [q_proj, [v_proj]]"),
            "target_modules[0]: must be a list, such as [\"q_proj\"], got 'q_proj'",
        ),
        (("[8]", "[8]\n  target_modules: [[q]]"), "line 8, search_space.target_modules[0][0]: should be 'q_proj'"),
        (("rank: [8]", "rank: []"), "line 7, search_space.rank: must not be empty"),
        (("base_model: some-base\n", ""), "line 1, base_model: is required"),
        (("dataset:\n  file: rows.jsonl\n", ""), "line 1, dataset: is required"),
        (
            ("dataset:\n  file: rows.jsonl\n", "dataset: rows.jsonl\n"),
            "line 3, dataset: must be an object with fields of file_id, validation_file_id, validation_fraction, "
            "max_validation_rows, file, validation_file, got 'rows.jsonl'",
        ),
        (("file: rows.jsonl", "file: else.jsonl"), "line 4, dataset.file: there is no file"),
        (("file: rows.jsonl", "file: rows.jsonl\n  file_id: file_1"), "dataset.file: stands beside file_id"),
        (("  file: rows.jsonl", "  validation_fraction: 0.2"), "line 3, dataset: needs `file`"),
        (("rank: [8]", "rank: [8"), "line 8, column 1: "),
        (("rank: [8]", "rank: [8]\n  rank: [9]"), "line 8, column 3: rank stands here twice"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    assert change[0] in GOOD
    assert said in mistakes(tmp_path, GOOD.replace(*change))


def test_all_mistakes_are_told_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = GOOD.replace("rank: [8]", "rank: [0]\n  seeds: [1]").replace("base_model: some-base", "base_model: 3")
    lines = mistakes(tmp_path, text).splitlines()
    assert "3 mistakes" in lines[0]
    assert [line.split(",")[0].strip() for line in lines[1:]] == ["line 2", "line 7", "line 8"]


def test_a_missing_file_hides_no_other_mistake(tmp_path: Path) -> None:
    lines = mistakes(tmp_path, GOOD.replace("rows.jsonl", "none.jsonl").replace("rank:", "rnk:")).splitlines()
    assert "2 mistakes" in lines[0]
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["line 4, dataset.file", "line 7, search_space.rnk"]


def test_a_dataset_without_rows_hides_no_other_mistake(tmp_path: Path) -> None:
    lines = mistakes(tmp_path, GOOD.replace("file: rows.jsonl", "validation_file: rows.jsonl") + "gpus: 0\n").splitlines()
    assert "2 mistakes" in lines[0]
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["line 3, dataset", "line 8, gpus"]


def test_a_time_without_a_zone_is_told_how_to_say_it(tmp_path: Path) -> None:
    said = mistakes(tmp_path, GOOD + "deadline: 2027-01-01T10:00:00\n")
    assert "line 8, deadline: must say its time zone, as 2027-01-31T12:00:00Z does" in said


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no file"):
        read(tmp_path / "nowhere.yaml")
    with pytest.raises(SpecError, match="cannot read"):
        read(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="no text in UTF-8"):
        read(tmp_path / "bytes.yaml")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(SpecError, match=r"holds rows; a spec is a YAML file that names them: `dataset: {file: rows.jsonl}`"):
        read(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("text", ["a: 2001-99-99", "[" * 5000, "a: !!python/object:os.system {}", "? [a]\n: b", "a: &x [*x]"])
def test_what_yaml_itself_stumbles_over_is_told(tmp_path: Path, text: str) -> None:
    mistakes(tmp_path, text)


@given(st.text(max_size=200))
def test_no_text_is_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(SpecError):
        read(path)


def test_the_json_schema_takes_what_the_reader_takes():
    schema = jsonschema_rs.validator_for(json_schema())
    example = yaml.safe_load((ROOT / "examples" / "spec.yaml").read_text())
    example["search_space"]["learning_rate"] = [1e-5]  # YAML's own numbers have a dot in them
    assert schema.is_valid(example)
    assert schema.is_valid(example | {"dataset": {"file_id": "file_1"}})
    for wrong in ({"dataset": {}}, {"dataset": {"file": "a", "file_id": "b"}}, {"serch_space": {}}, {"gpus": 0}):
        assert not schema.is_valid(example | wrong), wrong
