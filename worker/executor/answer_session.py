"""A placement without a task on an executor: a base, held under a lease to answer completions. Loads nothing itself."""

from dataclasses import dataclass

from contract.messages.placement_messages import AnswersOnly
from worker.executor.placement.placement_lease import Lease
from worker.pipe_messages import Phase


@dataclass
class AnswerSession:
    """open: the base is loaded, and requests are taken."""

    placement: AnswersOnly
    lease: Lease
    open: bool = False

    @property
    def phase(self) -> Phase:
        return "training" if self.open else "loading"  # as of a task, whose words the service knows
