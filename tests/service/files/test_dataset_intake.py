"""A data set on its way in: checked alike however its bytes are cut, within limits that hold while they come."""

import gzip
import hashlib
import json
from codecs import BOM_UTF8

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.files.dataset_intake import MAX_ERRORS, FileInvalid, FileTooLarge, Intake, IntakeLimits, RowCheck
from service.files.row_checks import Format
from service.storage.local_storage import LocalStorage
from service.storage.upload_grants import UploadGrants
from tests.service.api import CHAT, PAIR, jsonl

LIMITS = IntakeLimits(bytes=10_000, rows=200, line_bytes=200)


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path, UploadGrants("s" * 32))


def check(content: bytes, limits: IntakeLimits = LIMITS, cut: int = 10_000) -> RowCheck:
    made = RowCheck(limits)
    for start in range(0, len(content), cut):
        made.feed(content[start : start + cut])
    return made


def mistakes(content: bytes, limits: IntakeLimits = LIMITS) -> list[tuple[int | None, str | None, str]]:
    with pytest.raises(FileInvalid) as refusal:
        check(content, limits).finish()
    return [(error.line, error.field, error.code) for error in refusal.value.errors]


def test_a_whole_file_becomes_an_object(storage):
    content = jsonl(PAIR, PAIR)
    intake = Intake(storage.receive(), LIMITS)
    intake.feed(content)
    data = intake.finish()
    assert (data.format, data.rows) == (Format.COMPLETION, 2)
    assert (data.stored.sha256, data.stored.bytes) == (hashlib.sha256(content).hexdigest(), len(content))
    assert storage.open(data.stored.sha256).read() == content


def test_a_wrong_file_leaves_nothing(storage, tmp_path):
    intake = Intake(storage.receive(), LIMITS)
    intake.feed(b"{}\n")
    with pytest.raises(FileInvalid):
        intake.finish()
    intake.abandon()
    assert list(storage.keys()) == list((tmp_path / "incoming").iterdir()) == []


def test_the_last_newline_may_be_missing():
    last = check(jsonl(PAIR, PAIR).rstrip(b"\n"))
    assert (last.finish(), last.rows) == (Format.COMPLETION, 2)


@pytest.mark.parametrize("cut", [1, 3, 7, 10_000])
def test_a_byte_order_mark_and_blank_lines_are_not_kept(storage, cut):
    rows = jsonl(PAIR, PAIR).split(b"\n")
    content = BOM_UTF8 + b"\n" + rows[0] + b"\r\n \t\n\n" + rows[1] + b"\n\n  "
    intake = Intake(storage.receive(), LIMITS)
    for start in range(0, len(content), cut):
        intake.feed(content[start : start + cut])
    data = intake.finish()
    assert (data.rows, storage.open(data.stored.sha256).read()) == (2, rows[0] + b"\r\n" + rows[1] + b"\n")


def test_a_byte_order_mark_elsewhere_is_a_mistake():
    assert mistakes(jsonl(PAIR) + BOM_UTF8 + jsonl(PAIR)) == [(2, None, "byte_order_mark")]


def test_an_alpaca_row_is_one_mistake_and_says_how_to_write_it():
    with pytest.raises(FileInvalid, match="instruction and input") as refusal:
        check(jsonl({"instruction": "a", "input": "", "output": "b"})).finish()
    assert len(refusal.value.errors) == 1


def test_lines_are_counted_from_one_and_blank_ones_too():
    content = jsonl(CHAT) + b"\n" + jsonl(CHAT, {"messages": [{"role": "user", "content": ""}]}) + b"\n"
    assert mistakes(content) == [
        (4, "messages[0].content", "empty"),
        (4, "messages", "no_assistant_turn"),
    ]


def test_a_file_has_one_format():
    assert mistakes(jsonl(CHAT, PAIR, CHAT)) == [(2, None, "mixed_formats")]


def test_an_empty_file_is_none():
    assert mistakes(b"") == [(None, "file", "empty_file")]


@pytest.mark.parametrize(
    ("content", "kind", "way_out"),
    [
        (b"PAR1\x15\x04\n\x15\n" * 50, "Parquet", "to_json"),
        (gzip.compress(jsonl(*[PAIR] * 50)), "gzip", "decompress it first"),
        (b"PK\x03\x04\n\n", "a zip archive", "unpack it first"),
        (json.dumps([PAIR] * 2).encode(), "a list in JSON", "on a line of its own"),
        (BOM_UTF8 + b"\n " + json.dumps([PAIR] * 2, indent=1).encode(), "a list in JSON", "on a line of its own"),
        (b"\n  " + json.dumps([PAIR] * 200).encode(), "a list in JSON", "on a line of its own"),  # longer than a line may be
        (jsonl(PAIR, PAIR).decode().encode("utf-16"), "UTF-16", "save it as UTF-8 first"),
        (jsonl(PAIR, PAIR).decode().encode("utf-16-le"), "UTF-16", "save it as UTF-8 first"),
        (jsonl(PAIR, PAIR).decode().encode("utf-16-be"), "UTF-16", "save it as UTF-8 first"),
    ],
)
@pytest.mark.parametrize("cut", [1, 10_000])
def test_a_file_of_another_format_is_one_mistake_and_says_what_to_do(content, kind, way_out, cut):
    with pytest.raises(FileInvalid, match=f"is {kind}; a data set is JSON Lines .*{way_out}") as refusal:
        check(content, cut=cut).finish()
    assert [(error.line, error.field, error.code) for error in refusal.value.errors] == [(None, "file", "format_not_taken")]


@pytest.mark.parametrize("content", [b"prompt,completion\na,b\nc,d\n", b'{\n "prompt": "a",\n "completion": "b"\n}\n'])
def test_what_begins_no_object_in_its_first_row_is_to_be_converted(content):
    with pytest.raises(
        FileInvalid, match="convert CSV, or JSON that takes several lines a row: each line a JSON object such as"
    ) as refusal:
        check(b"\n" + content).finish()
    assert [error.line for error in refusal.value.errors if "convert" in error.message] == [2]


def test_a_mistake_in_an_object_is_not_taken_for_another_format():
    with pytest.raises(FileInvalid) as refusal:
        check(b'{"prompt": "a", completion}\nx\n').finish()
    assert [(error.line, "convert" in error.message) for error in refusal.value.errors] == [(1, False), (2, False)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            b'{"prompt": "a", "completion": "b"}{"prompt": "c", "completion": "d"}\n',
            "another begins at column 35; write each row",
        ),
        (b'{"prompt": "a", "completion": "b"}\r{"prompt": "c", "completion": "d"}\r', "ended by a line feed, as jq -c . does"),
        (b'{"prompt": "a", "completion": "b"},\n', "ends in a comma after its object, at column 35; remove it"),
        (
            b'{"version": 1, "data": [{"prompt": "a", "completion": "b"}]}\n',
            """on a line of its own, as jq -c '.["data"][]' does""",
        ),
        (b'{"question": "a", "answer": "b"}\n', '{"prompt": question, "completion": answer}'),
    ],
)
def test_a_line_of_several_rows_or_of_other_names_says_how_to_write_it(content, says):
    with pytest.raises(FileInvalid) as refusal:
        check(content).finish()
    (error,) = refusal.value.errors
    assert error.line == 1
    assert says in error.message


def test_what_follows_within_arguments_is_not_told_as_rows():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1} {"b": 2}'}}
    with pytest.raises(FileInvalid) as refusal:
        check(jsonl({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]})).finish()
    assert ["Extra data at column 10" in error.message for error in refusal.value.errors] == [True]


def test_mistakes_are_capped_and_counted():
    with pytest.raises(FileInvalid) as refusal:
        check(b"x\n" * 150).finish()
    assert len(refusal.value.errors) == MAX_ERRORS
    assert refusal.value.extra == {"error_count": 150}


def test_a_long_line_is_a_mistake_and_the_next_one_is_read():
    long = jsonl(PAIR | {"completion": "x" * 300})
    assert mistakes(long + jsonl(PAIR)) == [(1, None, "line_too_long")]
    assert mistakes(jsonl(PAIR) + long.rstrip(b"\n")) == [(2, None, "line_too_long")]


def test_a_line_of_just_the_limit_is_fine():
    line = jsonl(PAIR).rstrip(b"\n")
    check(line + b"\n" + line, IntakeLimits(10_000, 10, len(line))).finish()
    assert mistakes(line, IntakeLimits(10_000, 10, len(line) - 1)) == [(1, None, "line_too_long")]


def test_a_line_without_end_is_not_kept_in_memory():
    made = RowCheck(IntakeLimits(10**9, 10, 100))
    for _ in range(1000):
        made.feed(b"x" * 1000)
    assert len(made._rest) <= 100
    with pytest.raises(FileInvalid, match="line 1: has more than 100 bytes"):
        made.finish()


def test_rows_and_bytes_beyond_the_limit_end_it_at_once(storage):
    with pytest.raises(FileTooLarge, match="at most 200 rows"):
        check(jsonl(PAIR) * 201)
    intake = Intake(storage.receive(), IntakeLimits(bytes=100, rows=10, line_bytes=100))
    with pytest.raises(FileTooLarge, match="at most 100 bytes"):
        intake.feed(b"x" * 101)
    intake.abandon()


def test_a_key_that_no_answer_could_carry_is_said_in_words_it_can():
    with pytest.raises(FileInvalid) as refusal:
        check(b'{"prompt": "", "completion": "x", "\\ud800": 1}\n').finish()
    assert json.dumps(refusal.value.body("r"), ensure_ascii=False).encode()


lines = st.sampled_from([json.dumps(CHAT).encode(), json.dumps(PAIR).encode(), b"", b"{", b"x" * 250, b'{"prompt": 1}'])


@given(st.lists(lines, max_size=8), st.booleans(), st.data())
def test_it_does_not_matter_how_the_bytes_are_cut(parts, ended, data):
    content = b"\n".join(parts) + b"\n" * ended
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    whole, cut = RowCheck(LIMITS), RowCheck(LIMITS)
    whole.feed(content)
    for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        cut.feed(content[start:end])
    assert outcome(whole) == outcome(cut)


def outcome(made: RowCheck) -> object:
    try:
        return made.finish(), made.rows
    except FileInvalid as refusal:
        return refusal.errors, refusal.extra, made.rows
