"""How a JSON column's value is judged."""

import pytest

from service.fleet.models import Node

_KEPT = {
    "devices": [{"index": 0, "type": "cpu", "memory_bytes": 8}, {"index": 1, "type": "cpu", "memory_bytes": 8, "newer": [1]}],
    "versions": {"motet": "1"},
    "tokens_per_second": {"m": 3, "n": 2.5},
    "capabilities": ["a"],
    "losing": [],
    "device_losses": {"0": 3, "12": 1},
    "bases": ["b"],
}
_REFUSED = [("device_losses", {"0": 3.5}), ("device_losses", {"-1": 3}), ("device_losses", {"": 3}), ("versions", {"m": 1})]
_REFUSED += [("tokens_per_second", {"m": "3"}), ("devices", [{"index": "0", "type": "cpu", "memory_bytes": 8}])]


def _read(column, value):
    return Node.__table__.c[column].type.process_result_value(value, None)


@pytest.mark.parametrize(("column", "value"), _KEPT.items())
def test_what_the_service_writes_is_read_as_it_is(column, value):
    assert _read(column, value) is value


@pytest.mark.parametrize(("column", "value"), _REFUSED)
def test_another_form_is_read_as_nothing(column, value):
    assert not _read(column, value)
