"""What users read of a refusal: equal mistakes once, with all lines that have them."""

from motet.api.errors import ApiError

INPUT = 'must be {"messages": [...]}'


def refused(errors: list[dict[str, object]], **more: object) -> str:
    return str(ApiError(422, {"title": "The file is not a data set", "detail": "first (and more)", "errors": errors} | more))


def at(line: int, message: str = INPUT, field: str | None = "input") -> dict[str, object]:
    return {"line": line, "field": field, "code": "x", "message": message}


def test_a_mistake_of_twelve_rows_is_told_once() -> None:
    errors = [error for line in range(1, 13) for error in (at(line), at(line, "is unknown", "instruction"))]
    told = [f"lines 1 to 12, input: {INPUT}", "lines 1 to 12, instruction: is unknown"]
    assert refused(errors) == f"The file is not a data set: {'; '.join(told)}"


def test_more_than_a_line_holds_get_a_line_each() -> None:
    said = refused([at(number, f"mistake {number}") for number in range(4)]).splitlines()
    assert said == ["The file is not a data set:", *(f"  line {number}, input: mistake {number}" for number in range(4))]


def test_scattered_lines_are_named_up_to_a_few_and_the_rest_counted() -> None:
    said = refused([at(line) for line in (1, 2, 5, 7, 9, 11, 13, 15)], error_count=108)
    assert "lines 1 to 2, 5, 7, 9, 11 and 2 more places, input:" in said
    assert said.endswith("and 100 more mistakes")


def test_a_single_mistake_is_one_line() -> None:
    assert refused([at(3)]) == "first (and more)"
    assert ": line 3, input: " in refused([at(3), at(4, "other")])
    assert ": name: is required; line 1" in refused([{"field": "name", "message": "is required"}, at(1)])


def test_what_was_sent_is_named() -> None:
    assert str(ApiError(422, {"detail": "line 3: is empty"}, about="train.jsonl")) == "train.jsonl: line 3: is empty"
