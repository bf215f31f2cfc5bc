"""What openapi.yaml says is what happens: schemathesis walks the API along its links, as two tenants that meet each other's
ids.

Every request is sent again by three others: the other tenant, a key that may only read, and nobody. No answer is a 5xx, none
has a status, a media type or a body that the document does not tell of. 2,000 requests here, 10,000 in the long form.
"""

import json
from contextlib import suppress
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from service.tenants.api_keys import Scope
from tests.service.api import Caller
from tests.service.live_server import PATIENCE, Server

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
STEPS = 10  # requests of one scenario, at most
SETTINGS = hypothesis_settings(
    phases=[Phase.generate],
    max_examples=20,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=False,  # a walk that is begun anew goes elsewhere
    database=None,
    suppress_health_check=list(HealthCheck),
)
# an endless answer, and bodies that are no JSON: test_events.py and test_dataset_intake.py send those
LEFT_OUT = ("stream_task_events",)


def walk(server: Server, owners: list[Caller], others: list[dict[str, str]], at_least: int) -> tuple[int, set[str], list[str]]:
    """Walk until so many requests were answered; how many there were, the operations called, and what should not have been.

    The owners take turns; what one has sent is sent again by the next one, and with each of the other headers.

    A wrong answer does not end the walk: what the database holds by then, no second try would find again.
    """
    document = json.loads(requests.get(f"{server.url}/openapi.json", timeout=PATIENCE).text)
    schema = schemathesis.openapi.from_dict(document).exclude(operation_id=list(LEFT_OUT))
    count, called, wrong, turns, session = 0, set(), [], [], requests.Session()

    class Walk(schema.as_state_machine()):  # type: ignore[misc]
        def before_call(self, case: Any) -> None:
            if case.query and "wait" in case.query:
                case.query["wait"] = 0  # nothing is gained by waiting

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return self.sent_by(owners[len(turns) % len(owners)].headers)

        def sent_by(self, headers: dict[str, str]) -> dict[str, Any]:
            return {"base_url": server.url, "session": session, "headers": headers, "timeout": PATIENCE}

        def after_call(self, response: Any, case: Any) -> None:
            nonlocal count
            count += 1
            called.add(case.operation.definition.raw["operationId"])

        def validate_response(self, response: Any, case: Any, **how: Any) -> None:
            nonlocal count
            self.check_answer(response, case)
            turns.append(1)
            for headers in (owners[len(turns) % len(owners)].headers, *others):
                self.check_answer(case.call(**self.sent_by(headers)), case)
                count += 1

        def check_answer(self, response: Any, case: Any) -> None:
            try:
                case.validate_response(response, checks=CHECKS)
            except FailureGroup as failures:
                wrong.append("\n".join(str(failure) for failure in failures.exceptions) + f"\n{case.as_curl_command()}")

    while count < at_least:
        with suppress(FlakyStrategyDefinition):  # the API remembers: the same draws meet other things, and a walk begins anew
            Walk.run(settings=SETTINGS)
    return count, called, wrong


def try_all(server: Server, new_tenant, at_least: int) -> set[str]:
    """The operations that were called by two tenants, one of which has an admin's key."""
    owners = [new_tenant(*Scope), new_tenant()]
    others = [new_tenant(Scope.READ).headers, {"Authorization": ""}]
    count, called, wrong = walk(server, owners, others, at_least)
    assert not wrong, f"{len(wrong)} of {count} answers were not as the document says; the first: {wrong[0]}"
    return called


def test_two_thousand_requests(server: Server, new_tenant) -> None:
    assert len(try_all(server, new_tenant, 2_000)) >= 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_requests(server: Server, new_tenant) -> None:
    assert len(try_all(server, new_tenant, 10_000)) >= 40
