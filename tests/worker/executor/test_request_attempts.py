"""A request that the same executor is given again: what is late of its first attempt does nothing to the second."""

import queue
import threading
from types import SimpleNamespace

import pytest

from contract.messages.completion_messages import CompletionsGiven, PiecesTaken
from tests.worker.executor.completion_work import work
from worker.executor.completions.completion_batch import Completions
from worker.executor.placement.placement_lease import Lease

PATIENCE = 120.0


class Link:
    """Gives what is put into `given`. Pieces are told in `sent`, and answered with what is put into `taken`."""

    def __init__(self) -> None:
        self.given, self.taken, self.sent = queue.Queue(), queue.Queue(), queue.Queue()

    def completions(self, placement_id, token, wanted):
        return self.given.get()

    def pieces(self, placement_id, token, said):
        for piece in said.pieces:
            self.sent.put((piece.attempt, piece.failed and piece.failed.code))
        return PiecesTaken(gone=self.taken.get())


@pytest.fixture
def asked():
    """The link, and the next thing that the training loop is to do."""
    link, calls = Link(), queue.Queue()
    completions = Completions(link, None, calls.put)
    base = SimpleNamespace(vocabulary=1, max_positions=8)  # all that a request of an unknown token is looked up in
    completions.serve(SimpleNamespace(sharded=False, base=base), Lease("p1", 1, "token", 1e12))
    yield link, lambda: calls.get(timeout=PATIENCE)
    closing = threading.Thread(target=completions.close)
    closing.start()
    link.given.put(CompletionsGiven(requests=[]))
    link.taken.put([])
    closing.join()


def given(attempt, gone=()):
    """An attempt at a request that cannot be answered, which shows without a pass."""
    return CompletionsGiven(requests=[work("a", prompts=[[5]], attempt=attempt)], gone=list(gone))


def test_a_first_attempt_that_was_still_prepared_does_not_pass_for_the_second(asked):
    link, next_call = asked
    link.given.put(given(1))
    next_call()()
    ready = next_call()
    link.given.put(given(2, gone=["a"]))
    next_call()()
    next_call()()
    ready()
    next_call()()
    assert link.sent.get(timeout=PATIENCE) == (2, "unknown_token")


def test_word_that_nobody_waits_for_a_first_attempt_leaves_the_second(asked):
    link, next_call = asked
    link.given.put(given(1))
    next_call()()
    next_call()()
    assert link.sent.get(timeout=PATIENCE) == (1, "unknown_token")
    link.given.put(given(2))
    next_call()()
    ready = next_call()
    link.taken.put(["a"])  # the answer to the first attempt's piece
    next_call()()
    ready()
    assert link.sent.get(timeout=PATIENCE) == (2, "unknown_token")
