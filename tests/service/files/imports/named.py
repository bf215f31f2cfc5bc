"""Calls that name data sets, and what they name."""

import ipaddress

from tests.service.api import Caller, chat_rows, jsonl

NAME = "datasets/org/rows"


SOURCE = f"hf://{NAME}"


ROWS = jsonl(*chat_rows(60))


LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


def name(caller: Caller, source: str = SOURCE, **more: object):
    return caller.post("/v1/files", json={"source": source, **more})


def named(caller: Caller, source: str = SOURCE, **more: object) -> dict:
    answer = name(caller, source, **more)
    assert answer.status_code == 201, answer.text
    return answer.json()


def seen(caller: Caller, file_id: str) -> dict:
    answer = caller.get(f"/v1/files/{file_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer, field: str, code: str) -> str:
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert (error["field"], error["code"]) == (field, code), error
    return str(error["message"])
