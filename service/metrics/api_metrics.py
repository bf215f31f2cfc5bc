"""The API's own Prometheus metrics: requests by route, and database connections. Knows no database rows."""

from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

# histogram buckets, up to long polls of a minute and more
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ApiMetrics:
    """Uses its own registry, so that two apps in one process count separately. `shared`: the folder of several API processes'
    metric files."""

    def __init__(self, shared: Path | None = None) -> None:
        self._registry, self._shared = CollectorRegistry(), shared
        labels = ("method", "route", "status")
        self._requests = Counter("motet_api_requests", "Requests answered", labels, registry=self._registry)
        self._seconds = Histogram(
            "motet_api_request_seconds",
            "From a request's first byte to its answer's last; long polls wait on purpose",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.connections = Gauge(
            "motet_api_database_connections",
            "Connections in use",
            ("role",),
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self.storage_free = Gauge(
            "motet_storage_free_bytes",
            "Room on the disk that holds files, checkpoints and adapters",
            registry=self._registry,
            multiprocess_mode="mostrecent",
        )
        self.spans_dropped = Counter(
            "motet_trace_spans_dropped", "Spans that the collector did not take in time", registry=self._registry
        )

        self.completions = Counter("motet_completions", "Completions by how they ended", ("outcome",), registry=self._registry)
        self.completion_tokens = Counter(
            "motet_completion_tokens", "Tokens of completions: prompt or completion", ("kind",), registry=self._registry
        )
        self.completions.labels("finished")  # so that both are there before the first
        for kind in ("prompt", "completion"):
            self.completion_tokens.labels(kind)
        self.first_token_seconds = Histogram(
            "motet_completion_first_token_seconds",
            "From a completion's request to its first tokens, waiting included",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.tokens_per_second = Histogram(
            "motet_completion_tokens_per_second",
            "Of a completion's choices together, after its first tokens",
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000),
            registry=self._registry,
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. `route` is its path template, so that ids create no new series."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def exposition(self) -> bytes:
        """The metrics of all processes of this API, in Prometheus' text format."""
        if self._shared is None:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._shared))
        return generate_latest(registry)
