"""Configurations that are only displayed: whatever a field holds is passed on as it came, told, and ends no label."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from contract.compatibility.lenient_documents import ShownConfig, have_one, unread_fields
from contract.job_config import JobConfig
from contract.wording.config_labels import HEADINGS, cell, label, varying

SHOWN: TypeAdapter[JobConfig] = TypeAdapter(ShownConfig)
GOOD = {"learning_rate": 1e-4, "rank": 8, "alpha": 16.0, "batch_size": 4, "seed": 0}
scalars = st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats(allow_nan=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


@given(st.sampled_from(sorted(HEADINGS)), values)
def test_any_value_of_a_field(name: str, value: Any) -> None:
    document = GOOD | {name: value, "newer": {"a": 1}}
    config = SHOWN.validate_python(document)
    told, given_on = unread_fields(config), SHOWN.dump_python(config, mode="json")
    assert set(told) <= {name}
    assert given_on.keys() == document.keys()
    assert given_on | {name: value} == document
    if told:
        assert given_on[name] == value
        assert cell(config, name) == "?"
    assert unread_fields(SHOWN.validate_python(given_on)) == told
    assert label(config, varying([config, SHOWN.validate_python(GOOD)]))


@pytest.mark.parametrize(
    ("name", "value"),
    [("rank", "8"), ("rank", 0), ("batch_size", -4), ("batch_size", 4.5), ("alpha", 10**400), ("target_modules", "all-linear")],
)
def test_a_value_of_no_kind_that_is_displayed(name: str, value: Any) -> None:
    assert unread_fields(SHOWN.validate_python(GOOD | {name: value})) == [name]


@pytest.mark.parametrize(
    ("name", "value"), [("rank", 512), ("schedule", "wsd"), ("target_modules", ["q_proj", "router"]), ("batch_size", 4096)]
)
def test_a_value_beyond_the_limits_of_this_version(name: str, value: Any) -> None:
    config = SHOWN.validate_python(GOOD | {name: value})
    assert unread_fields(config) == []
    assert getattr(config, name) == (tuple(value) if isinstance(value, list) else value)
    assert SHOWN.dump_python(config, mode="json") == GOOD | {name: value}


def test_a_field_that_is_lacking_is_told_and_not_passed_on() -> None:
    lacking = {name: value for name, value in GOOD.items() if name != "seed"}
    config = SHOWN.validate_python(lacking)
    assert unread_fields(config) == ["seed"]
    assert SHOWN.dump_python(config, mode="json") == lacking


@pytest.mark.parametrize(
    ("values", "one"),
    [((None, None), True), ((0.1, 0.3), False), (("auto", None), False), (("auto", "slow"), False), (("auto", "auto"), True)],
)
def test_a_value_that_is_not_readable_equals_itself_alone(values: tuple[Any, ...], one: bool) -> None:
    assert have_one([SHOWN.validate_python(GOOD | {"beta": value}) for value in values], "beta") == one
