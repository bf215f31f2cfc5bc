"""JSON is read as every reader understands it, or refused with what is wrong."""

import json

import pytest

from contract.values.strict_json import NotStrict, read_strictly


@pytest.mark.parametrize(
    ("source", "key", "said"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "c", "has the key 'c' twice in one object"),
        ('[{"": 0, "": 1}]', "", "has the key '' twice in one object"),
        ('{"a": NaN}', None, "holds NaN, which is not JSON"),
        ("-Infinity", None, "holds -Infinity, which is not JSON"),
        ('{"a": ' + "9" * 4301 + "}", None, "holds a whole number of more than 4,300 digits; write a smaller one, or a text"),
        ("[1e999]", None, "holds 1e999, beyond the numbers up to 1.8e308"),
    ],
)
def test_what_readers_disagree_on_is_refused(source, key, said):
    with pytest.raises(NotStrict) as refused:
        read_strictly(source)
    assert refused.value.key == key
    assert said in str(refused.value)


@pytest.mark.parametrize("source", ['{"a": {"b": [1, 2.5e-3, null, true, "NaN"]}, "b": {}}', '"a"', "12345678901234567890"])
def test_all_else_is_read_as_ever(source):
    assert read_strictly(source) == json.loads(source)


def test_what_is_no_json_is_not_taken_for_json_that_is_not_strict():
    for source in ("", "{", '{"a": 1,}', "nan"):
        with pytest.raises(json.JSONDecodeError):
            read_strictly(source)
