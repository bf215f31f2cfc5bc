"""The load generators' client over a server that closes idle connections, as every server does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.load_http_client import Connection

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def _with_server(answers_each: int, use: Callable[[Connection, list[bytes]], Awaitable[None]]) -> None:
    """A server that resets each connection once it has answered so many requests on it and a further one comes."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(answers_each):
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(ANSWER)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Connection(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "key") as connection:
        await use(connection, seen)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [("GET", "/x", ""), ("POST", "/x", "Idempotency-Key: k\r\n"), ("POST", "/internal/v1/nodes/n/heartbeats", "")],
)
def test_a_request_that_meets_the_end_of_a_kept_connection_is_sent_anew(method: str, path: str, headers: str) -> None:
    async def use(connection: Connection, seen: list[bytes]) -> None:
        for count in (1, 2, 3):
            answer = await connection.request(method, path, headers=headers)
            assert (answer.status, answer.body, len(seen)) == (200, b"ok", count)

    asyncio.run(_with_server(1, use))


def test_a_post_that_may_have_been_done_is_not_repeated() -> None:
    async def use(connection: Connection, seen: list[bytes]) -> None:
        await connection.request("POST", "/v1/tasks")
        with pytest.raises(ConnectionError):
            await connection.request("POST", "/v1/tasks")
        assert len(seen) == 1

    asyncio.run(_with_server(1, use))


def test_a_server_that_breaks_a_new_connection_is_an_error() -> None:
    async def use(connection: Connection, seen: list[bytes]) -> None:
        with pytest.raises(ConnectionError):
            await connection.request("GET", "/x")

    asyncio.run(_with_server(0, use))
