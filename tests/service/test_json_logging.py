"""What log lines may not say. (That one request id leads through them is seen in background/test_queue_processes.py.)"""

import json
import logging
import subprocess
import sys
from datetime import datetime
from urllib.parse import unquote

import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url
from structlog.contextvars import bound_contextvars

from service.database.engine import driver_url
from service.json_logging import JsonFormatter, Redaction

SECRETS = [
    ("mk_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG", "mk_…"),
    ("nc_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG", "nc_…"),
    ("pt_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG", "pt_…"),
    ("/sign-in/ml_0123456789abcdefghijklmnopqrstuvwxyzABC-EF_/", "/sign-in/ml_…/"),  # which no route has as it is
    ("/invitations/mi_0123456789abcdefghijklmnopqrstuvwxyzABC-EF_/", "/invitations/mi_…/"),
    ("ms_0123456789abcdefghijklmnopqrstuvwxyzABC-EF_", "ms_…"),
    ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_…"),
    ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer …"),
    ("postgresql://motet:hunter2hunter2@db/motet", "postgresql://motet:…@db/motet"),
    ("postgresql://motet:hunter2/hun@ter2@db/motet", "postgresql://motet:…@db/motet"),
    (
        "postgresql://motet:12/hunter2@db/motet at once",
        "postgresql://motet:12/hunter2@db/motet at once",
    ),  # as a port; by its value
    ("redis://:hunter2hunter2@valkey:6379/0", "redis://:…@valkey:6379/0"),
    ("PUT /internal/v1/objects/" + "a" * 64 + ".12.1700000000.abcdefghijklmnopqrstuvwxyz", "PUT /internal/v1/objects/…"),
    ("said the-very-secret twice: the-very-secret", "said … twice: …"),
]


@pytest.mark.parametrize(("said", "kept"), SECRETS, ids=[kept for _, kept in SECRETS])
def test_a_secret_is_known_by_its_shape_or_its_value(said, kept):
    redact = Redaction(["the-very-secret"])
    line = redact({"event": said, "inside": {"deep": [said]}, "exception": ValueError(said)})
    assert line == {"event": kept, "inside": {"deep": [kept]}, "exception": kept}


@pytest.mark.parametrize(
    "name", ["authorization", "password", "secret", "webhook_secret", "token", "api_key", "credential_hash"]
)
def test_a_secret_is_known_by_its_name(name):
    assert Redaction()({name: "x", "of": {name: b"x"}}) == {name: "…", "of": {name: "…"}}


def test_what_is_no_secret_stays():
    line = {
        "event": "task task_01 is placed",
        "tokens": 12,
        "tokens_per_second": 1.5,
        "took": "ms_per_step_of_all",
        "none": None,
        "path": "/v1/tasks?x=1",
    }
    assert Redaction(["short"])(line) == line


def test_a_line_says_what_happened_when_to_whom_and_how_it_failed():
    try:
        {}["the-very-secret"]
    except KeyError:
        record = logging.LogRecord("service.rooms", logging.ERROR, "", 1, "task %s failed", ("task_1",), sys.exc_info())
    record.__dict__ |= {"status": 500, "token": "x"}
    with bound_contextvars(request_id="req_1"):
        line = json.loads(JsonFormatter(Redaction(["the-very-secret"])).format(record))
    assert datetime.fromisoformat(line.pop("timestamp")).timestamp() == pytest.approx(record.created, abs=1e-3)
    assert line.pop("exception").endswith("KeyError: '…'")
    known = {"event": "task task_1 failed", "level": "error", "logger": "service.rooms"}
    assert line == known | {"request_id": "req_1", "status": 500, "token": "…"}


def test_the_last_words_of_a_process_are_written_though_a_thread_writes_them():
    program = (
        "import logging; from service import json_logging; json_logging.configure(); json_logging.write_in_background(); "
        "logging.warning('last words, mk_%s', 'x' * 9)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    assert json.loads(said)["event"] == "last words, mk_…"


@pytest.mark.parametrize("password", ["hunter2/hunter2", "hunter2#hunter2", "[hunter2]?", "hunter2%2Fhunter2", "12/hunter2"])
def test_the_password_of_a_database_url_is_read_and_hidden_however_it_is_written(settings_for, tmp_path, password):
    """SQLAlchemy takes letters that libpq takes for the password's end."""
    url = f"postgresql+psycopg://motet:{password}@db/motet"
    settings = settings_for(url, tmp_path, app_database_url=url)
    assert make_url(settings.app_database_url).password == unquote(password)
    assert conninfo_to_dict(driver_url(settings.app_database_url))["password"] == unquote(password)
    line = Redaction(settings.secrets).text(f"tried {url} and {settings.app_database_url} with {unquote(password)!r}")
    assert "hunter2" not in line
