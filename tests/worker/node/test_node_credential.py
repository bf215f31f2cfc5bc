"""The node's credential: there again after any end of the daemon, wherever it comes, and readable by nobody else."""

import json
import stat

import pytest

from tests.worker.fleet import JOIN_TOKEN, Fleet
from tests.worker.running_node import refused, running
from worker.api_client import NodeLink
from worker.node.node_credential import NodeCredential
from worker.node.node_hosts import NodeHosts
from worker.node.node_registration import join
from worker.settings import Settings, SettingsError


@pytest.fixture
def fleet():
    made = Fleet()
    made.joins_left = 1
    yield made
    made.close()


@pytest.fixture
def settings(fleet, tmp_path):
    made = Settings(api_url=fleet.url, join_token=JOIN_TOKEN, node_name="node", worker_dir=tmp_path, worker_device="cpu")
    made.scratch.mkdir()
    return made


def joined(settings, link=None) -> str:
    """Join as a daemon that has just started, and leave; the credential that it got."""
    with NodeLink(settings.api_url) as own:
        credential = NodeCredential(settings.scratch)
        member = join(settings, link or own, NodeHosts(settings, print), lambda event: None, lambda seconds: False, credential)
        assert member is not None
        member.close()
        return member.welcome.credential


def test_a_node_joins_by_its_token_once_and_then_by_its_credential(fleet, settings):
    first = joined(settings)
    path = settings.scratch / "credential.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {"current": first}
    second = joined(settings.model_copy(update={"join_token": None}))
    assert second == fleet.credential != first
    assert json.loads(path.read_text()) == {"current": second}
    assert [status for _, path, status in fleet.requests if path.endswith("/nodes")] == [201, 201], "and at the first try"


class Cut:
    """A link whose first answer gets lost on its way."""

    def __init__(self, link: NodeLink) -> None:
        self._link, self.lost = link, False

    def register(self, bearer, registration):
        welcome = self._link.register(bearer, registration)
        if not self.lost:
            self.lost = True
            raise KilledHere
        return welcome

    def __getattr__(self, name):
        return getattr(self._link, name)


class KilledHere(BaseException):
    """As kill -9 would, at the worst moment."""


def test_a_daemon_that_was_killed_before_it_heard_the_answer_joins_again(fleet, settings):
    for _ in range(2):  # first the token's answer is lost, then a credential's
        with NodeLink(fleet.url) as link, pytest.raises(KilledHere):
            joined(settings, Cut(link))
        joined(settings)
    assert fleet.joins_left == 0
    assert len({registration.credential for registration in fleet.registrations}) == 2


def test_a_lost_credential_needs_a_new_token(fleet, settings):
    joined(settings)
    (settings.scratch / "credential.json").unlink()
    for given, says in (
        (settings, "MOTET_JOIN_TOKEN is refused"),
        (settings.model_copy(update={"join_token": None}), "not set"),
    ):
        with pytest.raises(SettingsError, match=says):
            joined(given)
    fleet.joins_left = 1  # as after POST /v1/admin/join-tokens
    joined(settings)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"current": 7}'])
def test_a_damaged_file_is_said_and_the_token_tried(fleet, settings, text, caplog):
    (settings.scratch / "credential.json").write_text(text)
    joined(settings)
    assert ("is damaged" in caplog.text) == (text in ("", "{"))


def test_a_folder_that_cannot_be_written_is_said(fleet, settings):
    (settings.scratch / "credential.json.new").mkdir()
    with pytest.raises(SettingsError, match="MOTET_WORKER_DIR: cannot keep"):
        joined(settings)
    assert not fleet.registrations, "what is not kept is not proposed"


def test_a_service_that_is_away_is_no_refusal(fleet, settings):
    fleet.down = True
    with NodeLink(fleet.url) as link:
        stops = iter([False, True])
        credential = NodeCredential(settings.scratch)
        assert (
            join(settings, link, NodeHosts(settings, print), lambda event: None, lambda seconds: next(stops), credential)
            is None
        )
    fleet.down = False
    joined(settings)


def test_a_second_daemon_in_the_folder_of_one_that_runs_ends_and_takes_nothing(fleet, tmp_path):
    """It would join by the other's credential: each join is the end of what the other runs."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with running(fleet, tmp_path / "one") as node:
        fleet.until(lambda: fleet.heartbeats)
        with refused(fleet, tmp_path / "two", MOTET_WORKER_DIR=str(tmp_path / "one")) as (code, said):
            assert code == 2
            assert f"MOTET_NODE_NAME: a worker named node already runs in {tmp_path / 'one' / 'node'}; stop it, or" in said
        before = len(fleet.heartbeats)
        fleet.until(lambda: len(fleet.heartbeats) > before + 1)
        assert (len(fleet.registrations), node.process.poll()) == (1, None)
    with running(fleet, tmp_path / "one"):  # killed, it holds nothing
        fleet.until(lambda: len(fleet.registrations) == 2)
