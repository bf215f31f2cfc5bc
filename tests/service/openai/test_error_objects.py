"""Problems as OpenAI's error objects."""

import json

from service.http.openai_ids import OpenAiIds
from service.http.problems import NotFound, Problem
from service.openai.error_objects import error_response


def test_our_own_fault_is_the_servers_and_any_other_the_requests() -> None:
    told = []
    for problem in (Problem("It failed."), NotFound("There is none.")):
        answer = error_response(problem, {}, OpenAiIds(True))
        error = json.loads(bytes(answer.body))["error"]
        told.append((answer.status_code, error["type"], error["message"]))
    assert told == [(500, "server_error", "It failed."), (404, "not_found_error", "There is none.")]
