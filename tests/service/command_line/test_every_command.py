"""Rules that every command keeps, asked of the commands there are: exit codes, JSON, broken pipes, ids at 80 columns."""

import json
import os
import re

import pytest
import typer
from motet.cli import app

from contract.messages.peft_settings import CONFIG_FILE, WEIGHTS_FILE
from tests.client.scripted_server import Script, serving
from tests.service.sample_tasks import adapter, jobs_of
from tests.service.web.page_samples import FOLDER

FOREGROUND = {("up",), ("demo",)}  # they have no result
# they ask none, or one that is typed
NO_SERVICE = {("schema",), ("services",), ("use",), ("logout",), ("login",)}
NO_SERVICE |= {("admin", word) for word in ("backup", "verify", "restore", "rotate-key", "reseal", "move-storage")}
VALUES = {
    "spec": "spec.yaml",
    "folder": ".",
    "base": "small",
    "source": "hf://datasets/o/n",
    "role": "viewer",
    "url": "http://127.0.0.1:1",
    "per_hour": "2.5",
    "repository": "organisation/name",
    "from_day": "2026-01-01",
}
IDS = ("task", "other", "ids", "key", "invitation", "adapter")  # arguments that become part of a path as they are
ID = re.compile(r"\b[a-z]+_[0-9a-hjkmnp-tv-z]{26}\b")


def _leaves(command, path=()):
    found = getattr(command, "commands", None)
    if not found:
        yield path, command
        return
    if command.invoke_without_command:
        yield path, command
    for name, inner in found.items():
        yield from _leaves(inner, (*path, name))


COMMANDS = {path: command for path, command in _leaves(typer.main.get_command(app)) if path not in FOREGROUND}
ASKING = [path for path in COMMANDS if path not in NO_SERVICE]


def _required(command):
    return [one.name for one in command.params if one.param_type_name == "argument" and one.required]


def _words(path, given="task_x"):
    options = [one for one in COMMANDS[path].params if one.param_type_name == "option" and one.required]
    said = [word for one in options for word in (one.opts[0], VALUES[one.name])]
    return (*path, *(VALUES.get(name, given) for name in _required(COMMANDS[path])), *said)


OWNERS = {("members", "invite"), ("members", "invitations"), ("members", "take-back")}  # a tenant's own key has no role
LISTING = [path for path in ASKING if not _required(COMMANDS[path]) and path not in OWNERS]


def complaint(ended):
    """The error, as JSON on the last line of standard error, and nothing on standard output."""
    assert ended.out == ""
    error = json.loads(ended.err.splitlines()[-1])["error"]
    assert error["message"]
    return error


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory):
    """Of a service that bears a wrong key of each command at once."""
    return settings_for(database_url, tmp_path_factory.mktemp("service"), failed_authentications_per_minute=1000)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("motet.api.steps.PAUSES", ())
    monkeypatch.setenv("HF_TOKEN", "hf_x")  # `motet push` looks for it first


@pytest.fixture(autouse=True)
def adapter_folder(home):
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        (home / name).write_text("{}")


def test_there_are_commands_to_ask():
    assert len(ASKING) > 35
    assert len(LISTING) > 15


def test_every_command_that_answers_takes_json():
    assert [path for path, command in COMMANDS.items() if "json" not in {one.name for one in command.params}] == []


def exits(motet, paths, expected, given="task_x", json_given=True):
    """Which of these commands exit otherwise than expected, or say why in another form."""
    wrong = {}
    for path in paths:
        ended = motet(*_words(path, given), *(["--json"] if json_given else []))
        if ended.code != expected:
            wrong[path] = ended.code, ended.err[-300:]
        elif path != ("doctor",):  # its findings are its result
            complaint(ended)
    return wrong


def test_a_service_that_does_not_answer_is_3(motet, free_port, monkeypatch):
    for name, value in (("URL", f"http://127.0.0.1:{free_port()}"), ("KEY", "mk_x")):
        monkeypatch.setenv(f"MOTET_API_{name}", value)
    monkeypatch.setenv("MOTET_ADMIN_KEY", "mk_x")
    assert exits(motet, ASKING, 3) == {}


def test_a_key_that_is_refused_is_3(known, monkeypatch):
    monkeypatch.setenv("MOTET_API_KEY", "mk_wrong\n")
    monkeypatch.setenv("MOTET_ADMIN_KEY", "mk_wrong")
    assert exits(known, ASKING, 3) == {}
    monkeypatch.setenv("MOTET_API_KEY", "mk_\nwrong")
    monkeypatch.setenv("MOTET_ADMIN_KEY", "mk_\nwrong")
    assert exits(known, ASKING, 3) == {}


@pytest.mark.parametrize("answer", [(200, {}, b"<html>"), (200, {}, b"{}"), (404, {}, b"<html>"), (502, {}, b"")])
def test_an_address_of_another_program_is_3(motet, monkeypatch, answer):
    with serving(Script(answer)) as url:
        for name, value in (("MOTET_API_URL", url), ("MOTET_API_KEY", "mk_x"), ("MOTET_ADMIN_KEY", "mk_x")):
            monkeypatch.setenv(name, value)
        asked = ASKING if answer[2] != b"{}" else [path for path in ASKING if path[0] != "delete"]  # whose answer is empty
        assert exits(motet, asked, 3) == {}


def test_an_id_that_nobody_has_is_1_and_one_that_is_none_is_2(known):
    named = [path for path in ASKING if any(name in IDS for name in _required(COMMANDS[path]))]
    assert len(named) > 12
    assert exits(known, named, 1) == {}
    assert exits(known, named, 1, given="task_\u00e9 ?#%2e") == {}
    for bad in ("../../livez", "task_x/jobs", "..", ""):
        assert exits(known, [path for path in named if path not in OWNERS and path[0] != "admin"], 2, given=bad) == {}


def test_a_reader_that_stops_early_is_no_error(known, monkeypatch, database, storage):
    known("submit", "spec.yaml")
    for path in [*LISTING, ("schema",)]:
        for more in ([], ["--json"], ["--help"]):
            read, write = os.pipe()
            os.close(read)
            with open(write, "w") as closed, monkeypatch.context() as patched:
                patched.setattr("sys.stdout", closed)
                ended = known(*path, *more)
            assert (ended.code, ended.err) == (0, ""), (path, more)


def test_a_full_disk_is_a_sentence(known, monkeypatch):
    for words in (("tasks",), ("tasks", "--json"), ("schema",), ("--help",)):
        with open("/dev/full", "w") as full, monkeypatch.context() as patched:
            patched.setattr("sys.stdout", full)
            ended = known(*words)
        assert (ended.code, "Traceback" in ended.err) == (1, False), words
        assert "No space left" in ended.err


def test_ids_stay_whole_at_80_columns(known, caller, monkeypatch, database, storage):
    pair = [known("submit", "spec.yaml", "--json").json["id"] for _ in range(2)]
    with database.begin() as session:
        adapter(session, storage, jobs_of(session, pair[0])[0], FOLDER)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    seen = set()
    for words in (*LISTING, ("compare", *pair), ("jobs", pair[0]), ("admin", "keys", caller.tenant_id)):
        said = re.sub(r"\x1b\[[0-9;]*m", "", known(*words).out)
        seen.update(ID.findall(said))
        torn = re.findall(r"\b(?:task|file|key|adapter|node|req|audit)_0[0-9a-z]*\b", ID.sub("", said))
        assert torn == [], (words, said)
        assert max(map(len, said.splitlines()), default=0) <= 80 or words in {("dashboard",), ("schema",)}, (words, said)
    assert seen >= set(pair)


def test_an_empty_list_says_so(known):
    for path in (("tasks",), ("files",), ("adapters",), ("members",), ("service-accounts",)):
        assert re.search(r"\bno \w+", known(*path).out), path
