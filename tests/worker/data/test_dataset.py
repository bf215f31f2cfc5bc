"""Data: reading, cutting, holding out by row hash, and the order of each job."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from contract.early_exit_policy import EarlyExitPolicy
from contract.job_schedule import JobSchedule
from contract.rows.row_encoding import RowReader
from contract.task_spec import Objective, TaskSpec
from tests.worker.corpus import EXAMPLE_BASE, jsonl, rows
from worker.data.dataset import DataError, Order, axis_length, held_out, load
from worker.data.row_reader import example, reader_of

TOKENIZER = AutoTokenizer.from_pretrained(EXAMPLE_BASE)


@pytest.fixture(scope="module")
def reader() -> RowReader:
    return reader_of(TOKENIZER)


def spec(**dataset) -> TaskSpec:
    training = dataset.pop("training", {})
    return TaskSpec.model_validate(
        {
            "base_model": "b",
            "dataset": {"file_id": "f", **dataset},
            "search_space": {"learning_rate": [1e-3]},
            "training": training,
        }
    )


def text(examples) -> set[str]:
    return {TOKENIZER.decode(example.tokens) for example in examples}


def test_a_fraction_is_held_out_exactly_and_never_trained_on(reader, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(rows(64)))
    data = load(spec(validation_fraction=0.1), path, None, reader)
    assert (len(data.train), len(data.validation)) == (58, 6)
    assert text(data.train.sequences).isdisjoint(text(data.validation.sequences))
    lines = path.read_bytes().splitlines()
    lowest = sorted(lines, key=lambda line: hashlib.sha256(line).digest())[:6]
    answers = {json.loads(line)["messages"][1]["content"] for line in lowest}
    assert all(any(answer in held for answer in answers) for held in text(data.validation.sequences))


def test_the_split_is_of_rows_not_of_places(reader, tmp_path):
    first, again = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_bytes(jsonl(rows(40)))
    again.write_bytes(b"".join(reversed(first.read_bytes().splitlines(keepends=True))))
    one, other = load(spec(), first, None, reader), load(spec(), again, None, reader)
    assert text(one.validation.sequences) == text(other.validation.sequences)
    assert load(spec(max_validation_rows=3), first, None, reader).validation.__len__() == 3


def test_a_row_that_equals_a_held_out_one_leaves_training(reader, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(rows(12) * 3))
    data = load(spec(validation_fraction=0.1), path, None, reader)
    assert len(data.validation) == 4
    assert text(data.train.sequences).isdisjoint(text(data.validation.sequences))


_HASHES = st.one_of(st.binary(min_size=1, max_size=1), st.binary(min_size=30, max_size=32))


@given(st.lists(_HASHES, min_size=1, max_size=80), st.floats(0.01, 0.5), st.integers(1, 20))
def test_what_is_held_out_has_its_size_and_the_lowest_hashes(hashes, fraction, at_most):
    read = np.frombuffer(b"".join(one.rjust(32, b"\0") for one in hashes), np.uint8).reshape(-1, 32)
    out = set(held_out(read, fraction, at_most).tolist())
    assert len(out) == min(at_most, max(1, int(len(hashes) * fraction + 0.5)))
    kept = [hashes[place].rjust(32, b"\0") for place in range(len(hashes)) if place not in out]
    assert not kept or max(hashes[place].rjust(32, b"\0") for place in out) <= min(kept)


def test_long_rows_are_cut_and_rows_with_nothing_left_are_skipped(reader, tmp_path):
    long_prompt = {"prompt": "one two three four " * 20, "completion": " five"}
    long_answer = {"prompt": "one", "completion": " two three" * 20}
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl([*rows(10), long_prompt, long_answer]))
    data = load(spec(training={"max_seq_len": 24}), path, None, reader)
    read = [*data.train.sequences, *data.validation.sequences]
    assert all(len(example.tokens) <= 24 for example in read)
    assert data.skipped >= 1
    assert data.truncated >= 2
    assert len(data.train) + len(data.validation) + data.skipped == 12
    assert all(example.loss_mask.any() for example in read)


def test_validation_rows_of_the_same_tokens_and_labels_are_one_cluster(reader, tmp_path):
    """Whatever their bytes."""
    path, held = tmp_path / "train.jsonl", tmp_path / "held.jsonl"
    path.write_bytes(jsonl(rows(5)))
    held.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "ab", "completion": ""}\n{"completion":"b","prompt":"a"}\n')
    found = load(spec(validation_file_id="v"), path, held, reader).validation.clusters
    first = [found.index(cluster) for cluster in found]
    assert (len(found), len(set(found)), found) == (3, 2, first)
    assert load(spec(validation_file_id="v"), path, path, reader).validation.clusters == []


def test_a_validation_file_is_taken_whole(reader, tmp_path):
    train, held = tmp_path / "t.jsonl", tmp_path / "v.jsonl"
    train.write_bytes(jsonl(rows(10)))
    held.write_bytes(jsonl(rows(5, seed=1)))
    data = load(spec(validation_file_id="v"), train, held, reader)
    assert (len(data.train), len(data.validation)) == (10, 5)


def test_validation_rows_that_are_trained_on_are_counted_whatever_their_bytes(reader, tmp_path):
    train, held = tmp_path / "t.jsonl", tmp_path / "v.jsonl"
    shared, apart = rows(10), rows(2, seed=1)
    train.write_bytes(jsonl(shared))
    held.write_bytes(b"".join(json.dumps(row | {"id": 1}, indent=None).encode() + b"\r\n" for row in [*shared[:3], *apart]))
    data = load(spec(validation_file_id="v"), train, held, reader)
    assert (len(data.train), len(data.validation), data.overlap) == (10, 5, 3)
    held.write_bytes(jsonl([*shared[:1], *shared[:1], *apart]))
    assert load(spec(validation_file_id="v"), train, held, reader).overlap == 2, "each of equal validation rows counts"
    held.write_bytes(jsonl(apart))
    assert load(spec(validation_file_id="v"), train, held, reader).overlap == 0


def test_the_same_text_with_other_labels_is_another_row(reader, tmp_path):
    train, held = tmp_path / "t.jsonl", tmp_path / "v.jsonl"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2
    train.write_bytes(jsonl([{"messages": turns}]))
    all_learned, last_learned = [*turns[:3], turns[3] | {"weight": 1}], [turns[0], turns[1] | {"weight": 0}, *turns[2:]]
    held.write_bytes(jsonl([{"messages": all_learned}, {"messages": last_learned}]))
    assert load(spec(validation_file_id="v"), train, held, reader).overlap == 1


def test_pairs_that_share_one_answer_are_different_rows(reader, tmp_path):
    train, held = tmp_path / "t.jsonl", tmp_path / "v.jsonl"
    pair = {"prompt": "one", "chosen": " two", "rejected": " three"}
    train.write_bytes(jsonl([pair]))
    held.write_bytes(jsonl([pair | {"rejected": " four"}, pair, {**pair, "chosen": " three", "rejected": " two"}]))
    preferences = spec(validation_file_id="v").model_copy(update={"objective": Objective(type="dpo")})
    assert load(preferences, train, held, reader).overlap == 1


def test_rows_of_one_file_that_differ_in_bytes_alone_are_counted_too(reader, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl([row | {"id": copy} for copy in range(2) for row in rows(20)]))
    data = load(spec(validation_fraction=0.1), path, None, reader)
    assert 1 <= data.overlap <= len(data.validation)
    held = text(data.validation.sequences)
    assert data.overlap == sum(one in text(data.train.sequences) for one in held)
    path.write_bytes(jsonl(rows(20)))
    assert load(spec(validation_fraction=0.1), path, None, reader).overlap == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"prompt": "a", "completion": "b"}\nnot json\n', "line 2 is not JSON"),
        (
            '{"prompt": "a", "completion": "Où?"}\n'.encode("latin-1"),
            "line 1 is not UTF-8: invalid start byte at byte 33",
        ),
        (b'{"prompt": "a", "completion": "b"}\n{"txt": "c"}\n', "line 2: objective sft learns from rows of {messages} or"),
        (
            b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n',
            "line 1: objective sft learns from .*; this one has prompt, chosen",
        ),
        (b"[1]\n", "line 1 is not a JSON object"),
        (b'{"prompt": "a", "completion": " b"}\n', "no training rows are left"),
        (b'{"prompt": "a", "completion": " b"}\n' * 30, "no training rows are left: the 30 rows are too much alike"),
        (
            b'{"prompt": "' + b"long " * 40 + b'", "completion": " b"}\n',
            "no training rows are left: 1 had nothing .*; raise training.max_seq_len, which the base model's positions bound, "
            "shorten the rows or bring more",
        ),
    ],
)
def test_a_file_that_cannot_be_trained_on_says_where_and_why(reader, tmp_path, content, says):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        load(spec(training={"max_seq_len": 16}), path, None, reader)


def test_an_example_takes_the_tokens_before_its_last_label(reader):
    ((tokens,),) = reader.read([{"prompt": "one two", "completion": " three"}])
    assert axis_length(example(tokens)) == len(tokens.ids) - 1


@given(st.integers(1, 50), st.integers(1, 12), st.integers(0, 2**31 - 1))
def test_an_epoch_is_a_permutation_drawn_from_seed_and_epoch_alone(count, batch_size, seed):
    order = Order(count, batch_size, seed)
    steps = -(-count // batch_size)
    epochs = [[int(row) for step in range(e * steps, (e + 1) * steps) for row in order.batch(step)] for e in range(3)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert [len(order.batch(step)) for step in range(steps)][:-1] == [batch_size] * (steps - 1)
    late = Order(count, batch_size, seed)  # a resumed job begins in the middle
    assert late.batch(2 * steps).tolist() == epochs[2][:batch_size]
    other = Order(count, batch_size * 2, seed)
    assert [int(row) for step in range(-(-count // (batch_size * 2))) for row in other.batch(step)] == epochs[0]


def test_epochs_and_seeds_have_orders_of_their_own():
    first, other = Order(100, 100, 1), Order(100, 100, 2)
    orders = [tuple(order.batch(epoch)) for epoch in range(3) for order in (first, other)]
    assert len(set(orders)) == 6
    assert orders[::2] == [tuple(Order(100, 100, 1).batch(epoch)) for epoch in range(3)]


PAIRS = [{"prompt": f"say {n}", "chosen": f" yes {n}", "rejected": f" no, {n} times no"} for n in range(40)]


def test_preference_rows_are_two_sequences_that_stay_together(reader, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(jsonl(PAIRS))
    dpo = spec(validation_fraction=0.1).model_copy(update={"objective": Objective(type="dpo")})
    data = load(dpo, path, None, reader)
    assert (len(data.train), len(data.validation)) == (36, 4)
    assert len(data.train.sequences) == len(data.train.lengths) == 72
    assert data.train.places([3, 0]) == [6, 7, 0, 1]
    told = [TOKENIZER.decode(data.train.sequences[place].tokens) for place in data.train.places([5])]
    assert "yes" in told[0]
    assert "no" in told[1]
    assert told[0].split("yes")[0] == told[1].split("no")[0]
    assert data.train.mean_length == pytest.approx(sum(data.train.lengths) / 36)
    path.write_bytes(jsonl(rows(3)))
    with pytest.raises(DataError, match="line 1: objective dpo learns from"):
        load(dpo, path, None, reader)


def test_pairs_whose_answers_differ_behind_the_cut_alone_are_skipped(reader, tmp_path):
    path, alike = tmp_path / "pairs.jsonl", "the same words " * 20
    path.write_bytes(jsonl([*PAIRS, {"prompt": "a", "chosen": alike + "yes", "rejected": alike + "no"}]))
    asked = {"objective": Objective(type="dpo")}
    whole = load(spec(training={"max_seq_len": 512}).model_copy(update=asked), path, None, reader)
    cut = load(spec(training={"max_seq_len": 48}).model_copy(update=asked), path, None, reader)
    assert (len(whole.train) + len(whole.validation), whole.skipped) == (len(PAIRS) + 1, 0)
    assert (len(cut.train) + len(cut.validation), cut.skipped, cut.truncated) == (len(PAIRS), 1, 1)


def test_evaluations_stay_within_their_share_of_the_tokens(reader, tmp_path):
    """In tokens: the base, every evaluation of the trend, and the end of the one job, which no cut can stop."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(rows(2000)))
    made = spec(validation_fraction=0.2, training={"epochs": 2})
    data = load(made, path, None, reader)
    no_share = made.model_copy(update={"early_exit": EarlyExitPolicy(max_evaluation_share=None)})
    whole = load(no_share, path, None, reader)
    assert (len(whole.validation), whole.trend_rows) == (400, 400)
    schedule = JobSchedule.of(made, made.jobs()[0], len(data.train))
    evaluated = schedule.evaluations * sum(data.trend.lengths) + 2 * sum(data.validation.lengths)
    trained = 2 * sum(data.train.lengths)
    assert 0.1 * trained < evaluated < 1.1 * 0.15 * trained, "rows differ in length, so the share is met but for their spread"
    assert 100 < len(data.validation) < 400
    assert text(data.trend.sequences) < text(data.validation.sequences) < text(whole.validation.sequences)


def test_copies_of_a_row_are_validated_after_all_that_differ(reader, tmp_path):
    """So that the trend, and the first prompts, are not copies of one row."""
    path, held = tmp_path / "train.jsonl", tmp_path / "held.jsonl"
    path.write_bytes(jsonl(rows(200)))
    lines = jsonl(rows(240)[200:]).splitlines(keepends=True)
    held.write_bytes(b"".join(lines))
    once = load(spec(validation_file_id="v"), path, held, reader)
    held.write_bytes(b"".join(lines * 5))
    several = load(spec(validation_file_id="v"), path, held, reader)
    first, again = (TOKENIZER.batch_decode([one.tokens for one in data.validation.sequences]) for data in (once, several))
    assert len(set(again)) == min(len(again), 40)
    assert first == again[: len(first)]
    assert len({*again[: several.trend_rows]}) == several.trend_rows


def test_of_longer_validation_rows_fewer_are_read(reader, tmp_path):
    train, held = tmp_path / "t.jsonl", tmp_path / "v.jsonl"
    train.write_bytes(jsonl([{"prompt": f"{n}", "completion": " one two three four"} for n in range(2000)]))
    read = []
    for words in (4, 16):
        held.write_bytes(jsonl([{"prompt": f"v{n}", "completion": " word" * words} for n in range(2000)]))
        read.append(len(load(spec(validation_file_id="v"), train, held, reader).validation))
    assert 32 < 2 * read[1] < read[0]


def test_few_validation_rows_are_never_left_out(reader, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(rows(60)))
    data = load(spec(validation_fraction=0.5), path, None, reader)
    assert len(data.validation) == 30
