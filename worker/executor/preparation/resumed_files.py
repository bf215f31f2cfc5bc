"""The checkpoints that a placement's jobs begin with, as files of the executor's own: a job may wait for rows for days, and the
tenant's object, which is named by its bytes, goes with any job that has the same. Reads none of them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from contract.messages.placement_messages import Placement
from worker.api_client import Unreachable
from worker.data.object_cache import ObjectCache
from worker.executor.placement.placement_lease import Lease
from worker.executor.retry import persist


class ResumedFiles:
    """own: the executor's files. Those of a placement that begins are the adapter store's, which removes them."""

    def __init__(self, own: ObjectCache, placement: Placement) -> None:
        self._own, self._placement = own, placement

    def keep(self, job: int, lease: Lease, fetch: Callable[[], Path]) -> Path:
        """The object that `fetch` gives, as the job's own file. Raises as `persist` does."""

        def attempt() -> Path:
            try:
                return self._own.link(fetch(), self._name(job))
            except FileNotFoundError as error:
                raise Unreachable(f"a checkpoint was removed from this node meanwhile: {error}") from None

        return persist(lease, "a download", attempt)

    @contextmanager
    def kept_if_done(self) -> Iterator[None]:
        """Remove them if the body raises."""
        with ExitStack() as undone:
            undone.callback(self.drop)
            yield
            undone.pop_all()

    def drop(self) -> None:
        """Remove them: the placement will not begin."""
        for job in self._placement.jobs:
            self._own.drop(self._name(job.index))

    def _name(self, job: int) -> str:
        return f"resumed-{self._placement.placement_id}-{job}"
