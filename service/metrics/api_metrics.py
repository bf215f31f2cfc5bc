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
