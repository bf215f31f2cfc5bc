"""Where others can reach the service it starts only behind a proxy, with a password on Redis and secrets that are random."""

import ipaddress
import secrets

import pytest
from pydantic import SecretStr, ValidationError

PROXY = (ipaddress.ip_network("10.0.0.0/8"),)
REDIS = "redis://service:password@valkey:6379/0"


@pytest.fixture
def settings(settings_for, tmp_path):
    return lambda **changes: settings_for("postgresql+psycopg://motet:p@/motet", tmp_path, **changes)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_none_of_it(settings, host):
    settings(host=host, redis_url="redis://127.0.0.1", secret_key=SecretStr("k" * 32))


@pytest.mark.parametrize("password", ["hunt/er", "hunt#er", "hunt?er", "[hunter"])
def test_a_password_that_is_not_encoded_is_refused_and_not_told(settings, password):
    with pytest.raises(ValidationError, match="percent-encoded") as refused:
        settings(host="0.0.0.0", redis_url=f"redis://:{password}@valkey:6379/0", trusted_proxies=PROXY)
    assert "hunt" not in str(refused.value.errors()[0]["msg"])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "motet.example"])
def test_others_need_all_of_it(settings, host):
    settings(host=host, redis_url=REDIS, trusted_proxies=PROXY)
    settings(host=host, redis_url=REDIS, trusted_proxies="none")
    settings(host=host, redis_url="unix:///run/valkey.sock", trusted_proxies=PROXY)
    for changes, said in (
        ({"trusted_proxies": None}, "MOTET_TRUSTED_PROXIES must name"),
        ({"redis_url": "redis://valkey:6379/0"}, "MOTET_REDIS_URL needs a password"),
        ({"secret_key": SecretStr("changeme" * 5)}, "MOTET_SECRET_KEY looks made up"),
        ({"join_token": SecretStr("0" * 64)}, "MOTET_JOIN_TOKEN looks made up"),
    ):
        with pytest.raises(ValidationError, match=said) as refused:
            settings(**({"host": host, "redis_url": REDIS, "trusted_proxies": PROXY} | changes))
        assert "changeme" not in str(refused.value.errors()[0]["msg"])


def test_a_random_secret_is_never_thought_made_up(settings):
    for _ in range(300):
        made = {name: SecretStr(secrets.token_hex(32)) for name in ("secret_key", "join_token")}
        settings(host="0.0.0.0", redis_url=REDIS, trusted_proxies=PROXY, **made)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("none", ()),
        (" None ", ()),
        ("", None),
        ("10.0.0.0/8", PROXY),
        ("10.0.0.0/8, ::1", (*PROXY, ipaddress.ip_network("::1"))),
    ],
)
def test_proxies_are_named_or_said_to_be_none(settings, said, meant):
    assert settings(trusted_proxies=said).trusted_proxies == meant


@pytest.mark.parametrize("said", ["all", "*", "10.0.0.1/8", "none,10.0.0.0/8"])
def test_what_is_no_network_is_refused(settings, said):
    with pytest.raises(ValidationError, match="trusted_proxies"):
        settings(trusted_proxies=said)
