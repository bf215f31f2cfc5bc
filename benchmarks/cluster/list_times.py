"""Times each list of the API, page after page, and /metrics. Knows no tables."""

import time
from statistics import median
from typing import Any

import httpx

PAGES, EACH = 5, 8  # pages that are read of a list, and how often


def list_times(tenant: httpx.Client, admin: httpx.Client, paths: dict[str, str]) -> list[dict[str, Any]]:
    """A row for each list: milliseconds of its pages, the slowest list first. `paths`: those below one object, by their
    template."""
    found = []
    for template, path in sorted(paths.items()):
        client = admin if path.startswith("/v1/admin") else tenant
        found.append({"list": template} | _times(client, path))
    return sorted(found, key=lambda row: -row["median_ms"])


def _times(client: httpx.Client, path: str) -> dict[str, Any]:
    taken, rows, paged = list[float](), 0, "?" if "?" not in path else "&"
    for _ in range(EACH):
        cursor: str | None = None
        for _ in range(PAGES):
            url = path + (f"{paged}cursor={cursor}" if cursor else "")
            began = time.perf_counter()
            answer = client.get(url)
            taken.append((time.perf_counter() - began) * 1000)
            assert answer.status_code == 200, f"{url}: {answer.text}"
            body = answer.json()
            rows += len(body.get("data", ()))
            cursor = body.get("next_cursor")
            if cursor is None:
                break
    return spread(taken) | {"rows": rows}


def spread(taken: list[float]) -> dict[str, Any]:
    ordered = sorted(taken)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"median_ms": median(ordered), "p99_ms": p99, "count": len(ordered)}


def metrics_ms(admin: httpx.Client, times: int = 15) -> float:
    """Median milliseconds of a scrape."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        assert admin.get("/metrics").status_code == 200
        taken.append((time.perf_counter() - began) * 1000)
    return median(taken)
