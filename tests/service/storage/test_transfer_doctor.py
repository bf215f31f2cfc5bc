"""motet doctor tries the transfer port as tenants, or workers, reach it, and says what to do where it does not answer."""

import pytest
from motet.api.client import Client
from motet.local.doctor import Finding, examine

from service.database.engine import Database
from service.settings import Settings
from service.tenants.api_keys import Scope, mint_key
from service.tenants.models import Tenant
from tests.service.live_server import Server, live
from tests.service.storage.transfer_server import by_a_port, transferring


@pytest.fixture
def key(database: Database) -> str:
    with database.begin() as session:
        if session.get(Tenant, "tenant_doctor") is None:
            session.add(Tenant(id="tenant_doctor", name="doctor"))
            session.flush()
        _, key = mint_key(session, "tenant_doctor", "test", tuple(Scope))
    return key


@pytest.fixture
def with_port(settings_for, database_url, tmp_path, free_port):
    """Settings of a service with a transfer port, which tenants use too or not."""

    def make(**changes: object) -> Settings:
        return settings_for(database_url, tmp_path, **(by_a_port(free_port()) | changes))

    return make


def transfers_of(server: Server, key: str) -> list[Finding]:
    found = examine(lambda: Client(server.url, key, key))
    return [one for one in found if "transfer port" in one.what]


@pytest.mark.parametrize("for_tenants", [True, False])
def test_a_transfer_port_that_answers_and_one_that_does_not(with_port, key, for_tenants):
    settings = with_port(**({} if for_tenants else {"transfer_url": None}))
    address = f"http://127.0.0.1:{settings.transfer_port}/transfers/"
    with live(settings) as server:
        with transferring(settings):
            (found,) = transfers_of(server, key)
            assert (found.well, found.what) == (True, f"the transfer port answers at {address}")
        (found,) = transfers_of(server, key)
    assert not found.well
    assert found.what.startswith(f"the transfer port does not answer at {address}: ")
    assert f"MOTET_TRANSFER_PORT={settings.transfer_port}" in found.mend
    assert address in found.mend
    assert ("without MOTET_TRANSFER_URL" in found.mend) == for_tenants


def test_a_proxy_that_leads_transfers_to_the_api_is_told(with_port, key, free_port):
    port = free_port()
    settings = with_port(transfer_url=f"http://127.0.0.1:{port}/")
    with live(settings, port) as server, transferring(settings):
        (found,) = transfers_of(server, key)
    assert (found.well, found.what.partition(": ")[2]) == (False, "something else is there, which says 404")


def test_a_service_without_a_transfer_port(server, key):
    assert transfers_of(server, key) == []
