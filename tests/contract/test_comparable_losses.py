"""Fields by which losses of two tasks cannot be compared."""

from typing import Any

from contract.wording.comparable_losses import files_in, loss_differences

CONTENTS = {"a": "1" * 64, "b": "1" * 64, "c": "2" * 64}


def spec(base_model: str = "small", objective: str = "sft", **dataset: Any) -> dict[str, Any]:
    return {"base_model": base_model, "objective": {"type": objective}, "dataset": {"file_id": "a", **dataset}}


def test_files_of_the_same_bytes_are_the_same():
    assert loss_differences([spec(), spec(file_id="b")], CONTENTS) == []
    assert loss_differences([spec(), spec(file_id="c")], CONTENTS) == ["dataset.file_id"]
    assert loss_differences([spec(), spec(file_id="gone")], CONTENTS) == ["dataset.file_id"]


def test_rows_of_a_validation_file_are_bound_by_nothing_of_the_training_file():
    held = spec(validation_file_id="a", max_validation_rows=8), spec(file_id="c", validation_file_id="b", max_validation_rows=9)
    assert loss_differences(held, CONTENTS) == []
    assert files_in(held[1]) == ["c", "b"]
    bounded = spec(max_validation_rows=8), spec(max_validation_rows=9)
    assert loss_differences(bounded, CONTENTS) == ["dataset.max_validation_rows"]


def test_what_is_learned_on_which_base_counts():
    assert loss_differences([spec(), spec("large", "dpo")], CONTENTS) == ["base_model", "objective.type"]
