"""The `motet` command line against a real service: run in this process, with the service's keys in the environment."""

import io
import json
import os
import signal
import sys

import pytest
import yaml
from motet.cli import main

from service.tenants.api_keys import Scope
from tests.service.api import PAIR, jsonl
from tests.service.live_server import Server

SPEC = {
    "name": "a search",
    "base_model": "small",
    "dataset": {"file": "rows.jsonl"},
    "search_space": {"learning_rate": [1e-4, 1e-3], "rank": 8},
    "labels": {"team": "speech"},
}


class Ended:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def caller(new_tenant):
    return new_tenant(*Scope)


@pytest.fixture
def home(monkeypatch, tmp_path):
    """Nothing in the environment, no keyring, no stack."""
    for name in ("MOTET_API_URL", "MOTET_API_KEY", "MOTET_ADMIN_KEY", "MOTET_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOTET_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "rows.jsonl").write_bytes(jsonl(*(PAIR | {"prompt": str(n)} for n in range(20))))
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def motet(home, monkeypatch, capsys):
    """Run the command line with these words."""

    def run(*words: str, stdin: str = "") -> Ended:
        monkeypatch.setattr(sys, "argv", ["motet", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            main()
        signal.signal(signal.SIGTERM, before)
        os.environ.pop("MOTET_SERVICE", None)
        said = capsys.readouterr()
        return Ended(int(ended.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def known(motet, server: Server, caller, monkeypatch):
    """The same, with the service and its keys in the environment."""
    monkeypatch.setenv("MOTET_API_URL", server.url)
    monkeypatch.setenv("MOTET_API_KEY", caller.key)
    monkeypatch.setenv("MOTET_ADMIN_KEY", caller.key)
    return motet
