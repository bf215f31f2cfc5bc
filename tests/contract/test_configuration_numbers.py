"""Numbers of configurations: different ones read differently, and a field that is read again gives the same number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.wording.configuration_numbers import (
    EXACT,
    LEAST,
    digits_apart,
    field_text,
    field_texts,
    meant,
    meant_text,
    number_text,
)

numbers = st.floats(min_value=1e-12, max_value=1e30)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0000000000000004e-05, "3e-05"),
        (0.0003, "0.0003"),
        (16.0, "16"),
        (1234.0, "1234"),
        (65_536.0, "65536"),
        (22.627416997969522, "22.6"),
        (0.00031622776601683794, "0.000316"),
        (0.00012345, "0.00012345"),
        (0.000123456, "0.000123"),
        (1e30, "1e+30"),
        (0.0, "0"),
        (10**40, str(10**40)),
    ],
)
def test_a_number_is_as_short_as_people_write_it(value: float, text: str) -> None:
    assert number_text(value) == text


@given(st.lists(numbers, min_size=2, max_size=20, unique=True))
def test_numbers_that_differ_before_the_rounding_read_differently(values: list[float]) -> None:
    digits = digits_apart(values)
    apart = {float(f"{value:.12g}") for value in values}
    assert len({number_text(value, digits) for value in values}) == len(apart)
    if digits > LEAST:
        assert len({number_text(value, digits - 1) for value in values}) < len(apart)


@given(numbers)
def test_a_field_that_is_read_again_holds_the_number(value: float) -> None:
    assert float(number_text(value, EXACT)) == value
    assert float(meant_text(value)) == pytest.approx(value, rel=1e-11, abs=0)
    if float(f"{value:.12g}") != float(f"{value:.9g}"):
        assert float(meant_text(value)) == value


def test_the_error_of_arithmetic_is_left_out_wherever_it_is() -> None:
    document = {"jobs": [{"learning_rate": 3.0000000000000004e-05, "alpha": 16.0, "rank": 8, "name": None, "rslora": True}]}
    assert meant(document) == {"jobs": [{"learning_rate": 3e-05, "alpha": 16, "rank": 8, "name": None, "rslora": True}]}


def test_fields_of_specs_are_told_in_words() -> None:
    assert field_texts([[0.001, 3.0000000000000004e-05], [0.001]]) == ["0.001, 3e-05", "0.001"]
    assert field_texts([[], None]) == ["none", "\u2013"]
    assert field_texts([True, None]) == ["yes", "\u2013"]
    assert field_texts([[["q_proj", "v_proj"], ["q_proj"]]]) == ['["q_proj", "v_proj"], ["q_proj"]']
    jobs = [[{"learning_rate": rate, "beta": None}] for rate in (1.00012e-4, 1e-4)]
    assert field_texts(jobs) == ['{"learning_rate": 0.00010001}', '{"learning_rate": 0.0001}']
    assert field_text(jobs[0]) == '{"learning_rate": 0.000100012}'
