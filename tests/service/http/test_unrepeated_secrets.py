"""A refusal repeats no secret of what was sent: neither a URL's user part nor its query, and no field that holds a secret."""

import logging

import pytest

from contract.wording.field_mistakes import shown

SECRET = "hunter2"
NAMED, PRESIGNED = f"https://ada:{SECRET}@example.com/", f"ftp://example.com/rows.jsonl?X-Amz-Signature={SECRET}"
URLS = [
    NAMED,
    f"https://{SECRET}@example.com/",
    f"https://ada:{SECRET}/x@example.com/",  # a slash in a password: what follows it is read as the path
    f"ftp://ada:{SECRET}@example.com/",
    f"ada:{SECRET}@example.com",
    f"https://ada:{SECRET}@example.com/ a",
    f"https://ada:{SECRET}@[x/",
    f"https://[{SECRET}]@example.com/",
    f"{NAMED}{'a' * 2048}",
    f"{PRESIGNED}#a",
    f"{PRESIGNED.removeprefix('ftp://')}",
    f"ada:{SECRET}@example.com/rows?sig={SECRET}",
    f"ftp://example.com/#access_token={SECRET}",
]
METRIC = {"type": "endpoint", "name": "m", "url": "https://example.com/"}
EVERY_EVENT = {"events": ["task.cancelled"]}
LAB = {"name": "lab", "url": "https://1.1.1.1"}
IMPORT = {"source": "s3://bucket/rows.jsonl"}


def task(**metric):
    return {"evaluation": {"metrics": [METRIC | metric]}}


def refused(caller, path: str, body: object, caplog) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = caller.post(path, json=body)
    assert answer.status_code in (409, 422), answer.text  # 409: the hub, before the token is looked at
    assert SECRET not in answer.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/webhooks", lambda url: EVERY_EVENT | {"url": url}),
        ("/v1/webhooks", lambda url: EVERY_EVENT | {"url": url, "format": "slack"}),
        ("/v1/webhooks", lambda url: EVERY_EVENT | {"url": url, "format": "email"}),
        ("/v1/webhooks", lambda url: EVERY_EVENT | {"url": "https://1.1.1.1", "format": url}),
        ("/v1/tracking-servers", lambda url: {"name": "lab", "url": url}),
        ("/v1/files", lambda url: {"source": url}),
        ("/v1/files", lambda url: IMPORT | {"endpoint": url}),
        ("/v1/files", lambda url: IMPORT | {"region": url}),
        ("/v1/tasks", lambda url: task(url=url)),
    ],
)
def test_a_url_is_told_without_its_user_and_query(tenant, caplog, path, body, url):
    refused(tenant, path, body(url), caplog)


@pytest.mark.parametrize(
    "said",
    [
        *("at 10:30 write to ada@example.com", "git@github.com:acme/rows", "hf://datasets/acme/rows@main", "ada@example.com"),
        *("acme/model:v1@sha256:ab", "is a=b? c=d", "why?"),
    ],
)
def test_what_is_no_secret_is_repeated(said):
    assert shown(said) == said
    assert shown(repr(said)) == repr(said)


def test_an_operator_is_told_a_source_without_its_user(admin, caplog):
    for url in (f"ftp://ada:{SECRET}@example.com/", f"hf://ada:{SECRET}@acme/small"):
        refused(admin, "/v1/models", {"name": "m", "source": url}, caplog)


@pytest.mark.parametrize("wrong", [f"{SECRET}\0:", SECRET * 2000, [SECRET], {"a": SECRET}])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/tracking-servers", lambda wrong: LAB | {"credentials": {"token": wrong}}),
        ("/v1/tracking-servers", lambda wrong: LAB | {"credentials": {"username": wrong, "password": "p"}}),
        ("/v1/tracking-servers", lambda wrong: LAB | {"credentials": {"username": "a", "password": wrong}}),
        ("/v1/tracking-servers", lambda wrong: LAB | {"credentials": {"api_key": wrong}}),
        ("/v1/tracking-servers", lambda wrong: LAB | {"credentials": wrong}),
        ("/v1/hub-pushes", lambda wrong: {"adapter_id": "a", "repository": "a/b", "token": wrong}),
        ("/v1/files", lambda wrong: {"source": "hf://datasets/a/b", "token": wrong}),
        ("/v1/files", lambda wrong: IMPORT | {"access_key_id": wrong, "secret_access_key": "s"}),
        ("/v1/files", lambda wrong: IMPORT | {"access_key_id": "a", "secret_access_key": wrong}),
        ("/v1/files", lambda wrong: IMPORT | {"access_key_id": "a", "secret_access_key": "s", "session_token": wrong}),
        ("/v1/tasks", lambda wrong: task(headers={"Authorization": wrong})),
        ("/v1/tasks", lambda wrong: task(headers=wrong)),
    ],
)
def test_a_secret_of_the_wrong_form_is_not_repeated(tenant, caplog, path, body, wrong):
    refused(tenant, path, body(wrong), caplog)


def test_numbers_that_stand_for_secrets_are_not_repeated(tenant, caplog):
    answer = tenant.post("/v1/hub-pushes", json={"adapter_id": "a", "repository": "a/b", "token": 271828182845})
    assert answer.status_code == 422
    assert "271828182845" not in answer.text


def test_a_long_text_of_many_beginnings_of_urls_is_refused_in_no_time(tenant):
    """By a pattern each beginning is followed to the text's end: hours, of a body that anybody with a key may send."""
    answer = tenant.post("/v1/tasks", json={"name": "://" * 2**20})
    assert answer.status_code == 422
    assert "name" in answer.text
