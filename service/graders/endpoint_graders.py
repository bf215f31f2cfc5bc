"""A task's endpoint graders: checked when it is posted, and stored with their headers sealed. Calls no endpoint."""

import json
from collections.abc import Iterator, Mapping

from sqlalchemy.orm import Session

from contract.evaluation.endpoint_fields import HIDDEN
from contract.evaluation.text_evaluation import Endpoint, named
from contract.task_spec import TaskSpec
from service.database.engine import new_id
from service.graders.models import EndpointGrader
from service.http.outbound import NotPublic, Outbound, Refused
from service.http.problems import FieldError
from service.secret_box import SecretBox
from service.settings import Settings

PURPOSE = "grader's headers"


def box_of(settings: Settings) -> SecretBox:
    """The SecretBox for headers."""
    return SecretBox.of(settings, PURPOSE)


def outbound_of(settings: Settings) -> Outbound:
    return Outbound(settings.grader_networks, settings.grader_seconds)


class EndpointGraders:
    def __init__(self, outbound: Outbound, box: SecretBox) -> None:
        self._outbound, self._box = outbound, box

    @classmethod
    def of(cls, settings: Settings) -> "EndpointGraders":
        return cls(outbound_of(settings), box_of(settings))

    def mistakes(self, spec: TaskSpec) -> Iterator[FieldError]:
        """What is wrong with the spec's endpoint graders. Resolves no name: calls find out whether addresses are public."""
        for place, metric in enumerate(spec.evaluation.metrics if spec.evaluation is not None else ()):
            if isinstance(metric, Endpoint):
                yield from self._mistakes_of(f"evaluation.metrics[{place}]", metric)

    def _mistakes_of(self, field: str, metric: Endpoint) -> Iterator[FieldError]:
        try:
            self._outbound.check_unresolved(metric.url)
        except Refused as refused:
            way = "; an operator allows a private network in MOTET_GRADER_NETWORKS" if isinstance(refused, NotPublic) else ""
            yield FieldError(field=f"{field}.url", code="url_refused", message=f"{refused}{way}")
        for name, value in metric.headers.items():
            if value == HIDDEN:
                message = "is what answers show in place of a header's value; give the value itself"
                yield FieldError(field=f"{field}.headers.{name}", code="value_hidden", message=message)

    def store(self, session: Session, tenant_id: str, task_id: str, spec: TaskSpec) -> None:
        """Keep the spec's endpoint graders for a new task."""
        for metric in spec.evaluation.endpoints if spec.evaluation is not None else ():
            session.add(
                EndpointGrader(
                    id=new_id("grader"),
                    tenant_id=tenant_id,
                    task_id=task_id,
                    metric=named(metric),
                    url=metric.url,
                    headers=self._box.seal(json.dumps(metric.headers)) if metric.headers else None,
                    rate_limit=metric.rate_limit,
                )
            )


def opened(box: SecretBox, sealed: bytes | None) -> Mapping[str, str]:
    """A grader's headers. Raises Unsealable."""
    found: dict[str, str] = json.loads(box.open(sealed)) if sealed is not None else {}
    return found
