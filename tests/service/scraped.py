"""What /metrics told, as a test compares it."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families


def samples(response: Any) -> dict[tuple[str, ...], float]:
    """(name, *label values) -> value."""
    assert response.status_code == 200, response.text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
