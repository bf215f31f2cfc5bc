"""Where the client finds the service: arguments, environment, state folder; and that a key goes to no foreign address."""

import json
from pathlib import Path

import pytest
from motet import Client
from motet.api.credentials import Credentials, find
from motet.api.errors import NoCredentials, Unreachable

from contract.processes.local_stack import state_folder

LOCAL = {"api_url": "http://127.0.0.1:8321", "admin_key": "mk_admin", "demo_key": "mk_demo"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder, and nothing in the environment."""
    for name in ("MOTET_API_URL", "MOTET_API_KEY", "MOTET_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOTET_STATE_DIR", str(tmp_path))
    return tmp_path


def test_nothing_anywhere_says_what_to_do() -> None:
    with pytest.raises(NoCredentials, match="`motet up`"):
        find()


def test_a_local_stack_is_found(folder: Path) -> None:
    (folder / "credentials.json").write_text(json.dumps(LOCAL))
    assert find() == Credentials("http://127.0.0.1:8321", "mk_demo", "mk_admin")


def test_arguments_go_before_the_environment_and_that_before_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "credentials.json").write_text(json.dumps(LOCAL))
    monkeypatch.setenv("MOTET_API_URL", "https://motet.example/")
    monkeypatch.setenv("MOTET_API_KEY", "mk_theirs")
    assert find() == Credentials("https://motet.example", "mk_theirs")
    assert find("http://here", "mk_mine", "mk_boss") == Credentials("http://here", "mk_mine", "mk_boss")


def test_a_newline_at_the_end_of_a_key_or_address_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_API_URL", "https://motet.example/\n")
    monkeypatch.setenv("MOTET_API_KEY", " mk_theirs\n")
    assert find() == Credentials("https://motet.example", "mk_theirs")


@pytest.mark.parametrize("key", ["mk_a\nmk_b", "mk a", "mk_\x00", "mk_ä"])
def test_a_key_of_several_words_is_told_before_any_request(key: str) -> None:
    with pytest.raises(NoCredentials, match="MOTET_API_KEY is not a key"):
        find("https://motet.example", key)
    with pytest.raises(NoCredentials, match="MOTET_ADMIN_KEY is not a key"):
        find("https://motet.example", "mk_1", key)


def test_a_local_key_is_not_sent_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "credentials.json").write_text(json.dumps(LOCAL))
    monkeypatch.setenv("MOTET_API_URL", "https://motet.example")
    with pytest.raises(NoCredentials, match=r"no key for https://motet\.example"):
        find()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"api_url": 3}', "null"])
def test_a_damaged_file_is_told(folder: Path, text: str) -> None:
    (folder / "credentials.json").write_text(text)
    with pytest.raises(NoCredentials, match="damaged"):
        find()


def test_the_state_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOTET_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert state_folder() == Path("/somewhere/motet")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/her")
    assert state_folder() == Path("/home/her/.local/state/motet")


@pytest.mark.parametrize("url", ["127.0.0.1:8321", "ftp://host", "http://", "http://[", "not a url"])
def test_an_address_that_is_none_is_told_at_once(url: str) -> None:
    with pytest.raises(Unreachable, match="is not the address of an API"):
        Client(url, "mk_1")


def test_without_an_admin_key_admin_work_is_refused_here() -> None:
    with Client("http://127.0.0.1:1", "mk_1") as client, pytest.raises(NoCredentials, match="MOTET_ADMIN_KEY"):
        client.admin.nodes()
