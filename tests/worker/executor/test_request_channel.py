"""The executor's line to the service for completions, against a link that refuses."""

import threading

import pytest

from contract.messages.completion_messages import ChoicePiece, CompletionPiece, CompletionsGiven, PiecesTaken
from worker.api_client import Refused, Unreachable, Unreadable
from worker.executor.completions import request_channel
from worker.executor.completions.request_channel import RequestChannel, merged
from worker.executor.placement.placement_lease import Lease

PATIENCE = 120.0


class Link:
    """Gives no requests, and answers pieces as `refuses` says: with an error, or by taking them."""

    def __init__(self, refuses) -> None:
        self.refuses, self.sendings = refuses, 0
        self.texts: dict[str, str] = {}
        self.gone: set[str] = set()
        self.last: dict[str, int] = {}
        self.changed = threading.Condition()

    def completions(self, placement_id, token, wanted):
        return CompletionsGiven(requests=[], gone=[])

    def pieces(self, placement_id, token, sent):
        with self.changed:
            self.sendings += 1
            self.changed.notify_all()
            error = self.refuses([piece.request_id for piece in sent.pieces], self.sendings)
            if error is None or isinstance(error, Unreachable):  # an answer that was lost: the service has them
                for piece in sent.pieces:
                    if piece.number > self.last.get(piece.request_id, 0):
                        self.last[piece.request_id] = piece.number
                        self.texts[piece.request_id] = self.texts.get(piece.request_id, "") + piece.choices[0].text
            if error is not None:
                raise error
            return PiecesTaken(gone=[piece.request_id for piece in sent.pieces if piece.request_id in self.gone])

    def until(self, holds):
        with self.changed:
            assert self.changed.wait_for(holds, timeout=PATIENCE), (self.texts, self.sendings)


@pytest.fixture
def channel_to():
    made = []

    def make(link):
        gone, lost = [], threading.Event()

        def told(attempts):
            with link.changed:
                gone.extend(attempts.items())
                link.changed.notify_all()

        channel = RequestChannel(link, lambda requests: None, told, lost.set)
        channel.serve(Lease("p1", 1, "token", 1e12), 0, frozenset())
        made.append(channel)
        return channel, gone, lost

    yield make
    for channel in made:
        channel.close()


def piece(request, number, text, over=False):
    return CompletionPiece(request_id=request, number=number, choices=[ChoicePiece(index=0, text=text)], over=over)


@pytest.mark.parametrize("error", [Refused(422, "invalid", "the text cannot be stored", {}), Unreadable("no JSON")])
def test_a_refused_request_is_given_up_and_costs_no_other_its_text(channel_to, error):
    link = Link(lambda requests, sending: error if "bad" in requests else None)
    channel, gone, lost = channel_to(link)
    channel.send(piece("bad", 1, "x", over=True))
    for request in ("a", "b"):
        channel.send(piece(request, 1, f"of {request}", over=True))
    link.until(lambda: len(link.texts) == 2 and gone)
    assert (gone, link.texts) == ([("bad", None)], {"a": "of a", "b": "of b"})
    assert not lost.is_set()
    refused = link.sendings
    channel.send(piece("a", 2, ", more", over=True))
    link.until(lambda: link.texts["a"] == "of a, more")
    assert link.sendings == refused + 1, "what was refused is not sent again"


def test_a_lost_answer_doubles_no_text(channel_to):
    """The pieces are sent again as they were: merged with later ones, they would look like new ones."""

    def refuses(requests, sending):
        if sending == 1:
            channel.send(piece("a", 2, ", two", over=True))  # before the first is sent again, however late anybody wakes
            return Unreachable("the answer was lost")
        return None

    link = Link(refuses)
    channel, gone, _ = channel_to(link)
    channel.send(piece("a", 1, "one"))
    link.until(lambda: link.last.get("a") == 2)
    assert (link.texts, gone) == ({"a": "one, two"}, [])


def test_a_first_and_a_last_piece_are_sent_at_once_and_those_between_gather(channel_to, monkeypatch):
    monkeypatch.setattr(request_channel, "_GATHER_SECONDS", 3600.0)
    link = Link(lambda requests, sending: None)
    channel, _, _ = channel_to(link)
    channel.send(piece("a", 1, "one"))
    link.until(lambda: link.texts == {"a": "one"})
    channel.send(piece("a", 2, ", two"))
    channel.send(piece("a", 3, ", three"))
    channel.send(piece("b", 1, "another's first"))
    link.until(lambda: link.texts == {"a": "one, two, three", "b": "another's first"})
    channel.send(piece("a", 4, ", four"))
    channel.send(piece("a", 5, ", five", over=True))
    link.until(lambda: link.last["a"] == 5)
    assert link.sendings == 3


@pytest.mark.parametrize("error", [None, Refused(422, "invalid", "the text cannot be stored", {})])
def test_a_request_that_is_gone_is_so_for_the_attempt_whose_piece_was_sent(channel_to, error):
    link = Link(lambda requests, sending: error)
    link.gone = {"a"}
    channel, gone, _ = channel_to(link)
    channel.send(piece("a", 1, "late").model_copy(update={"attempt": 1}))
    link.until(lambda: gone)
    assert gone == [("a", 1)]


def test_what_is_left_of_one_attempt_is_not_merged_with_the_next():
    first, ending, anew = (
        piece("a", number, text, over).model_copy(update={"attempt": attempt})
        for number, text, over, attempt in ((2, "late", False, 1), (3, "", True, 1), (1, "whole", False, 2))
    )
    told = [(one.attempt, one.number, one.over, one.choices[0].text) for one in merged([first, ending, anew])]
    assert told == [(1, 3, True, "late"), (2, 1, False, "whole")]


@pytest.mark.parametrize("status", [401, 409])
def test_a_lease_that_the_service_does_not_know_loses_all_requests_at_once(channel_to, status):
    link = Link(lambda requests, sending: Refused(status, "fence_stale", "the placement has ended", {}))
    channel, gone, lost = channel_to(link)
    channel.send(piece("a", 1, "one"))
    assert lost.wait(PATIENCE)
    assert (channel.lease, gone, link.sendings) == (None, [], 1)


def test_a_lease_that_the_service_knows_no_more_is_not_asked_in_a_spin(monkeypatch):
    """The training loop names it again at once; the next one is asked without a wait."""
    monkeypatch.setattr(request_channel, "_RETRY_SECONDS", 3600.0)
    asked, changed = [], threading.Condition()

    class Stale(Link):
        def completions(self, placement_id, token, wanted):
            with changed:
                asked.append(placement_id)
                changed.notify_all()
            raise Refused(409, "fence_stale", "it is over", {})

    stale, named = Lease("p1", 1, "token", 1e12), threading.Event()

    def name_again():
        if not named.is_set():
            channel.serve(stale, 1, frozenset())
            named.set()

    channel = RequestChannel(Stale(None), lambda requests: None, lambda ids: None, name_again)
    try:
        channel.serve(stale, 1, frozenset())
        assert named.wait(PATIENCE)
        with changed:
            assert not changed.wait_for(lambda: len(asked) > 1, timeout=0.2)
        channel.serve(Lease("p2", 1, "token", 1e12), 1, frozenset())
        with changed:
            assert changed.wait_for(lambda: "p2" in asked, timeout=PATIENCE)
            assert asked[:2] == ["p1", "p2"]
    finally:
        channel.close()
