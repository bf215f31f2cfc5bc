"""What a collector's answer says of spans that it did not take."""

import pytest

from service.tracing.otlp_json import rejected


@pytest.mark.parametrize(
    ("said", "spans"),
    [
        (b'{"partialSuccess": {"rejectedSpans": "2"}}', 2),
        (b"", 0),
        (b"no JSON", 0),
        (b'{"partialSuccess": null}', 0),
        (b'{"partialSuccess": {"rejectedSpans": 1e999}}', 0),
        (b'{"partialSuccess": {"rejectedSpans": 1%s}}' % (b"0" * 400), 5),
        (b'{"partialSuccess": {"rejectedSpans": -1}}', 0),
        (b"[" * 60_000, 0),
    ],
)
def test_an_answer_of_any_kind_ends_no_process(said: bytes, spans: int) -> None:
    assert rejected(said, 5) == spans
