"""docs/OPERATIONS.md against the code: settings and their defaults, routes, and which routes take an Idempotency-Key."""

import re
from pathlib import Path
from typing import Any

import yaml

from service.settings import Settings as ServiceSettings
from worker.settings import Settings as WorkerSettings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "OPERATIONS.md").read_text()
PATHS = yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"]
# read where they are needed, by the client, by tests and by docker-compose.yml; no program's settings have them
ELSEWHERE = {"MOTET_API_KEY", "MOTET_CHROMIUM", "MOTET_MODELS", "MOTET_REQUIRE_CHROMIUM", "MOTET_SERVICE", "MOTET_STATE_DIR"}
DEFAULTS = {
    f"MOTET_{name.upper()}": field.default
    for settings in (ServiceSettings, WorkerSettings)
    for name, field in settings.model_fields.items()
}


def test_every_setting_it_names_is_there() -> None:
    named = set(re.findall(r"\bMOTET_[A-Z_0-9]+\b", PAGE))
    assert len(named) > 80
    assert not named - DEFAULTS.keys() - ELSEWHERE


def test_every_setting_is_named_in_some_document() -> None:
    said = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    # where a program listens, and what it connects to: it does not start without, or says the address
    unsaid = {name for name in DEFAULTS if not re.search(rf"\b{name}\b", said)} - {"MOTET_PORT", "MOTET_REDIS_URL"}
    assert not {name for name in unsaid if not name.startswith("MOTET_HF_")}  # those have names of their own: HF_TOKEN


def test_the_numbers_beside_settings_are_their_defaults() -> None:
    """`NAME` (5), or a row of a table whose second column is a number."""
    said = re.findall(r"`(MOTET_\w+)`(?: \((\d[\d,.]*)\)| \| (\d[\d,.]*) \|)", PAGE)
    assert len(said) > 30
    wrong = {
        name: (number, DEFAULTS[name])
        for name, beside, column in said
        if float((number := beside or column).replace(",", "")) != DEFAULTS[name]
    }
    assert not wrong


def test_every_route_it_names_is_there() -> None:
    named = set(re.findall(r"\b(GET|POST|PUT|PATCH|DELETE) (/v1/[\w/{}.-]*[\w}])", PAGE))
    assert len(named) > 40
    known = {(method.upper(), _unnamed(path)) for path, methods in PATHS.items() for method in methods}
    assert not {f"{method} {path}" for method, path in named if (method, _unnamed(path)) not in known}


def _unnamed(path: str) -> str:
    return re.sub(r"\{\w+\}", "{}", path)


def test_every_post_that_creates_something_takes_an_idempotency_key() -> None:
    posts = {path: methods["post"] for path, methods in PATHS.items() if "post" in methods}
    creating = {path for path, post in posts.items() if "201" in post["responses"]}
    assert len(creating) > 15
    assert not creating - {path for path, post in posts.items() if "idempotency-key" in _parameters(post)}


def _parameters(route: dict[str, Any]) -> set[str]:
    return {one["name"] for one in route.get("parameters", ())}
