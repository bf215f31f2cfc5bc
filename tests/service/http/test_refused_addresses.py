"""Which addresses tenants may name for calls: public ones alone, by https, whose names resolve in a bounded time."""

import ipaddress
import socket
import threading

import pytest

from service.http import outbound
from service.http.outbound import Failed, Outbound, Refused
from service.http.public_addresses import is_public
from tests.service.live_server import PATIENCE, until


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),  # a cloud's metadata
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("fec0::1", False),  # site-local
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.215.14", True),
        ("64:ff9b::7f00:1", False),  # 127.0.0.1 behind NAT64
        ("2002:7f00:1::", False),  # 127.0.0.1 by 6to4
        ("2001:0:5ef5:79fb::80ff:fffe", False),  # Teredo
    ],
)
def test_which_addresses_are_public(address, public):
    assert is_public(ipaddress.ip_address(address)) == public


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://localhost/",
        "https://169.254.169.254/latest/meta-data",
        "http://93.184.215.14/",  # public, but in clear
        "ftp://93.184.215.14/",
        "https://user:password@93.184.215.14/",
        "https://93.184.215.14/#part",
        "https://93.184.215.14:99999/",
        "https://93.184.215.14:0/",
        "https:///path",
        "https://bücher.example/",
        "https://a\r\nHost: b/",
        "//93.184.215.14",
        "https://" + "a" * 2048,
    ],
)
def test_what_is_refused_when_it_is_written_down_and_when_it_is_called(url):
    caller = Outbound()
    with pytest.raises(Refused) as refused:
        caller.check(url)
    with pytest.raises(Refused):
        caller.post(url, b"", {})
    assert "127.0.0.1" not in str(refused.value)


def test_a_name_that_nobody_knows_may_be_written_down_and_fails_when_called():
    url = "https://nobody.invalid/"
    Outbound().check(url)
    with pytest.raises(Failed, match="resolved"):
        Outbound().post(url, b"", {})
    with pytest.raises(Refused, match="https://"):
        Outbound().check("http://nobody.invalid/")


def test_one_address_that_is_not_public_refuses_the_name(monkeypatch):
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in ("93.184.215.14", "10.0.0.1")]
    monkeypatch.setattr(outbound.socket, "getaddrinfo", lambda *_, **__: answers)
    with pytest.raises(Refused, match="not public"):
        Outbound().post("https://both.example/", b"", {})


def test_a_resolver_that_hangs_holds_a_call_for_a_bounded_time_and_few_threads(monkeypatch):
    """getaddrinfo takes no timeout, and how long a resolver may take is a matter of the machine's settings."""
    hangs, asked = threading.Event(), []

    def never(host: str, *rest: object, **more: object) -> None:
        asked.append(host)
        hangs.wait()
        raise OSError("too late")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    monkeypatch.setattr(outbound, "_RESOLVE_SECONDS", 0.01)
    try:
        with pytest.raises(Failed, match=r"no answer within 0\.01 s"):
            Outbound().post("https://hangs.example/", b"", {})
        for _ in range(60):
            Outbound().check("https://hangs.example/")  # what cannot be resolved may be later
        until(lambda: len(asked) >= 32)  # the last threads may not have begun
        assert len(asked) == 32
        with pytest.raises(Failed, match="does not answer for other names"):
            Outbound().post("https://hangs.example/", b"", {})
        with pytest.raises(Failed, match=r"no answer within 0\.01 s"):  # an operator's name is asked all the same
            Outbound().get("https://id.example/", {}, 10, trusted="https://id.example/")
    finally:
        hangs.set()
    for _ in range(32):
        assert outbound._RESOLVING.acquire(timeout=PATIENCE), "each gives its place back"
    outbound._RESOLVING.release(32)
