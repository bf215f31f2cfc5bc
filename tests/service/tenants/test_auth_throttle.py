"""Failed authentication: counted for each address, refused before it costs a connection, and in nobody else's way."""

import asyncio

import httpx
import pytest
from sqlalchemy import Engine, event
from starlette.requests import HTTPConnection

from service.database.prepared_statements import PreparedStatement
from service.http.problems import Unauthorized
from service.tenants import auth_throttle
from service.tenants.auth_throttle import AuthThrottle, TooManyFailures, address_of
from tests.service.fleet.fixtures import join_token, nothing_left  # noqa: F401  (a fixture)
from tests.service.fleet.scripted import ScriptedNode
from tests.service.live_server import PATIENCE
from tests.service.processes import serving

FEW = 3


@pytest.fixture
def caller(database_url, settings_for, tmp_path, serve):
    """An app whose addresses may fail three times a minute, and a good key that it has not seen."""
    return serve(settings_for(database_url, tmp_path, failed_authentications_per_minute=FEW))


@pytest.fixture
def lookups(monkeypatch):
    """Statements that look for a key, a node or a join token."""
    seen: list[str] = []
    ask = PreparedStatement.ask

    def count(statement: str) -> None:
        if any(table in statement for table in ("FROM api_keys", "FROM nodes", "FROM join_tokens")):
            seen.append(statement)

    def asked(statement: PreparedStatement, *given):
        count(statement.sql)
        return ask(statement, *given)

    def executed(*given) -> None:
        count(given[2])

    monkeypatch.setattr(PreparedStatement, "ask", asked)
    event.listen(Engine, "before_cursor_execute", executed)
    yield seen
    event.remove(Engine, "before_cursor_execute", executed)


def wrong(caller, number: int, path: str = "/v1/quotas"):
    return caller.client.get(path, headers={"Authorization": f"Bearer mk_wrong_{number}"})


def test_wrong_keys_are_looked_up_a_few_times_and_then_refused_unread(caller, lookups):
    answers = [wrong(caller, number) for number in range(FEW + 4)]
    assert [answer.status_code for answer in answers] == [*[401] * FEW, *[429] * 4]
    assert len(lookups) == FEW
    refused = answers[-1]
    assert refused.json()["code"] == "too_many_failures"
    assert 1 <= int(refused.headers["retry-after"]) <= 60 // FEW
    assert refused.headers["content-type"] == "application/problem+json"
    assert wrong(caller, 99, "/openai/v1/files").json()["error"]["code"] == "too_many_failures"


def test_a_good_key_of_the_same_address_goes_on_though_its_memory_ran_out(caller, lookups):
    assert caller.get("/v1/quotas").status_code == 200
    for number in range(2 * FEW):
        wrong(caller, number)
    caller.client.app.state.motet.keys.forget()
    assert caller.get("/v1/quotas").status_code == 200


def test_without_a_key_nothing_is_counted(caller, lookups):
    for _ in range(3 * FEW):
        assert caller.client.get("/v1/quotas").json()["code"] == "key_missing"
    assert caller.get("/v1/quotas").status_code == 200


def test_nodes_and_joins_are_throttled_too_and_a_good_node_goes_on(caller, database, lookups, nothing_left):  # noqa: F811
    node = ScriptedNode(caller.client, join_token(database, "good"), "good").register()
    assert node.beat().status_code == 200
    stranger = ScriptedNode(caller.client, "", "good")
    codes = [stranger.ask_to_join(f"jt_{number}").status_code for number in range(FEW + 3)]
    assert codes == [*[401] * FEW, *[429] * 3]
    before = len(lookups)
    assert stranger.call("POST", f"nodes/{node.id}/heartbeats", "nc_wrong", {"boot_id": node.boot_id}).status_code == 429
    assert node.call("GET", f"nodes/{node.id}/desired", "nc_wrong").status_code == 429
    assert len(lookups) == before
    assert node.beat().status_code == 200
    assert node.reboot().beat().status_code == 200


def test_beats_with_a_wrong_credential_never_wait_for_themselves(caller, database, nothing_left):  # noqa: F811
    node = ScriptedNode(caller.client, join_token(database, "beaten"), "beaten").register()
    codes = [node.call("POST", f"nodes/{node.id}/heartbeats", f"nc_{number}", {}).status_code for number in range(FEW + 2)]
    assert codes == [*[401] * FEW, *[429] * 2]


def attempted(throttle: AuthThrottle, address: str, credential: str, failed: bool = False, error=None) -> None:
    async def attempt() -> None:
        async with throttle.attempt(address, credential) as one:
            one.failed = failed
            if error is not None:
                raise error

    asyncio.run(attempt())


def fail(throttle: AuthThrottle, address: str, credential: str) -> bool:
    """Whether the attempt was let through."""
    try:
        attempted(throttle, address, credential, failed=True)
    except TooManyFailures:
        return False
    return True


def test_many_at_once_get_no_further_than_many_in_a_row():
    throttle, through = AuthThrottle(5), []

    async def attempts() -> None:
        async def one(number: int) -> None:
            async with throttle.attempt("a", f"wrong {number}") as attempt:
                through.append(number)
                await asyncio.sleep(0)
                attempt.failed = True

        await asyncio.gather(*(one(number) for number in range(50)), return_exceptions=True)

    asyncio.run(attempts())
    assert len(through) == 5


def test_good_ones_at_once_wait_for_each_other_and_are_all_let_through():
    throttle, at_once, most = AuthThrottle(5), 0, 0

    async def attempts() -> None:
        async def one(number: int) -> None:
            nonlocal at_once, most
            async with throttle.attempt("a", f"good {number}"):
                at_once, most = at_once + 1, max(most, at_once + 1)
                await asyncio.sleep(0)
                at_once -= 1

        await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(50))), PATIENCE)

    asyncio.run(attempts())
    assert most == 5
    assert not throttle._buckets


def test_one_who_waits_is_refused_when_those_before_were_wrong_and_goes_on_when_its_bucket_is_gone(monkeypatch):
    monkeypatch.setattr(auth_throttle, "_MOST", 1)
    throttle = AuthThrottle(1)

    async def hold(credential: str, failed: bool, let: asyncio.Event) -> None:
        async with throttle.attempt("a", credential) as attempt:
            await let.wait()
            attempt.failed = failed

    async def evicted() -> None:
        let = asyncio.Event()
        first, second = (asyncio.ensure_future(hold(credential, False, let)) for credential in "xy")
        await asyncio.sleep(0)
        async with throttle.attempt("b", "z"):  # the one bucket that is remembered is b's
            let.set()
            await asyncio.wait_for(asyncio.gather(first, second), PATIENCE)

    async def refused() -> None:
        let = asyncio.Event()
        first, second = (asyncio.ensure_future(hold(credential, True, let)) for credential in "uv")
        await asyncio.sleep(0)
        let.set()
        await first
        with pytest.raises(TooManyFailures):
            await asyncio.wait_for(second, PATIENCE)

    asyncio.run(evicted())
    asyncio.run(refused())


def test_addresses_keep_apart_and_time_gives_tokens_back(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(auth_throttle.time, "monotonic", lambda: now[0])
    throttle = AuthThrottle(6)
    assert [fail(throttle, "a", str(n)) for n in range(8)] == [*[True] * 6, False, False]
    assert fail(throttle, "b", "x")
    with pytest.raises(TooManyFailures) as refused:
        attempted(throttle, "a", "y")
    assert refused.value.headers == {"Retry-After": "10"}
    now[0] += 10.0
    assert [fail(throttle, "a", str(n)) for n in range(2)] == [True, False]
    now[0] += 3600.0
    assert [fail(throttle, "a", str(n)) for n in range(7)] == [*[True] * 6, False]


def test_what_went_wrong_on_our_side_costs_nobody_anything():
    throttle = AuthThrottle(1)
    for error in (RuntimeError, KeyboardInterrupt, asyncio.CancelledError):
        with pytest.raises(error):
            attempted(throttle, "a", "key", error=error)
    assert fail(throttle, "a", "key")
    assert not fail(throttle, "a", "key")


def test_a_good_credential_that_fails_is_good_no_more():
    throttle = AuthThrottle(2)
    attempted(throttle, "a", "good")
    assert [fail(throttle, "a", str(n)) for n in range(3)] == [True, True, False]
    with pytest.raises(Unauthorized):
        attempted(throttle, "a", "good", error=Unauthorized("revoked"))
    assert not fail(throttle, "a", "good")


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(auth_throttle, "_MOST", 50)
    throttle = AuthThrottle(3)
    for number in range(500):
        fail(throttle, f"address {number}", "x")
        attempted(throttle, "b", f"good {number}")
    assert len(throttle._good) == 50 >= len(throttle._buckets)


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 1), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1), "fe80::/64"),
        (("testclient", 1), "testclient"),
        (("x" * 500, 1), "x" * 64),
        (None, ""),
    ],
)
def test_an_address_is_what_one_caller_has(client, address):
    assert address_of(HTTPConnection({"type": "http", "client": client, "headers": []})) == address


@pytest.mark.parametrize(("proxies", "told_apart"), [("127.0.0.0/8", True), ("none", False), ("10.0.0.0/8", False)])
def test_whom_a_trusted_proxy_names_is_the_address(
    database_url, settings_for, environment_of, free_port, tmp_path, proxies, told_apart
):
    settings = settings_for(database_url, tmp_path, port=free_port(), failed_authentications_per_minute=FEW)
    environment = environment_of(settings) | {"MOTET_TRUSTED_PROXIES": proxies}
    with serving(settings, environment, tmp_path / "log") as api, httpx.Client(base_url=api.url, timeout=PATIENCE) as http:

        def ask(forwarded: str, number: int) -> int:
            headers = {"Authorization": f"Bearer mk_{forwarded}_{number}", "X-Forwarded-For": forwarded}
            return http.get("/v1/quotas", headers=headers).status_code

        assert [ask("192.0.2.1", number) for number in range(FEW + 1)] == [*[401] * FEW, 429]
        assert ask("192.0.2.2", 0) == (401 if told_apart else 429)
