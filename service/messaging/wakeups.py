"""Wakes nodes: an entry on a node's Redis stream says that its desired state changed. Redis may lose any entry.

Knows nothing of what changed; the node fetches its desired state over HTTP.
"""

import logging

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.messaging.circuit_breaker import CircuitBreaker

log = logging.getLogger(__name__)

_MAXLEN = 100


def connect(redis_url: str) -> redis.Redis:
    """A client that answers or fails within about two seconds, so that a wake-up never delays its caller for long."""
    return redis.Redis.from_url(
        redis_url,
        socket_connect_timeout=1.0,
        socket_timeout=2.0,
        # one retry, since a server restart breaks pooled connections; none after a timeout, which would repeat
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        health_check_interval=30,
    )


def stream_of(node_id: str) -> str:
    return f"motet:node:{node_id}"


class NodeWakeups:
    """Writes wake-ups and never raises: the daemon's heartbeat or the reconciler makes up for a lost one."""

    def __init__(self, redis_url: str) -> None:
        self._redis = connect(redis_url)
        self._breaker = CircuitBreaker()

    def desired_changed(self, node_id: str) -> None:
        """Tell the node that its desired state has changed."""
        if not self._breaker.allows():
            return
        try:
            self._redis.xadd(stream_of(node_id), {"kind": "desired"}, maxlen=_MAXLEN, approximate=True)
            self._breaker.succeeded()
        except redis.RedisError as error:
            if isinstance(error, redis.TimeoutError):
                self._breaker.failed()  # only a hung server costs the timeout; a refused connection fails at once
            log.warning("wake-up for node %s was not sent, Redis is unreachable: %s", node_id, error)
