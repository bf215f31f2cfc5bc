"""When a bucket of passes is captured, and which captured one takes a pass of another: the rule, without real captures."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from grouped_lora.work_table import ClassSize

from worker.model.cuda import captured_graphs
from worker.model.cuda.batches.device_batch import BatchShape
from worker.model.cuda.captured_graphs import CapturedGraphs
from worker.model.cuda.label_tail import TailGradient, TailInput
from worker.model.cuda.pass_graphs import CAPTURE_AFTER, FORWARD, MAX_GRAPHS, SAVED, PassGraphs

SHAPE = BatchShape(1024, 8, (ClassSize(32, 4, 16),))
HOST = torch.zeros(1, dtype=torch.int32)


class Unrecorded(CapturedGraphs[Any, Any]):
    """Records nothing; counts captures and replays."""

    def __init__(self, most: int, did: Counter[str]) -> None:
        super().__init__(torch.device("cpu"), most)
        self._did = did

    def _recorded(self, inputs: torch.Tensor, run: Any, warm: Any, rest: Any) -> Any:
        self._did["captured"] += 1
        self._did["warmed up"] += warm is not None
        graph, later = (
            type("Graph", (), {"replay": lambda _, kind=kind: self._did.update([kind])})() for kind in ("replayed", "backward")
        )
        return captured_graphs._Graph(graph, inputs.clone(), None, later if rest is not None else None)


class Counted(PassGraphs):
    """Counts what became of passes: "launched", "captured" or "replayed", the last with a "tail" and after it a "backward" if
    there is one; and captures that were warmed up."""

    def __init__(self, whole_tokens: int = 0) -> None:
        super().__init__(torch.device("cpu"), 4096, whole_tokens, (4, 8), torch.float32)
        self.did = Counter[str]()
        self._captured = Unrecorded(MAX_GRAPHS, self.did)

    def launch(self, *_: Any) -> Any:
        self.did["launched"] += 1

    def launch_tail(self, given: TailInput, labels: Any, out: TailGradient | None) -> Any:
        assert out is None or out[0].shape[0] == given[0].shape[0] + 1
        self.did["tail"] += 1

    def pass_of(self, shape: BatchShape, mode: Any = SAVED) -> None:
        self.run(shape, HOST, None, mode, self)  # type: ignore[arg-type]

    def shared(self, shape: BatchShape) -> BatchShape:
        """A pass of several tasks; the bucket in which it ran."""
        for larger in self.larger(shape, SAVED):
            self.waste(shape, SAVED, larger)
            self.pass_of(larger)
            return larger
        self.pass_of(shape)
        return shape

    def capture(self, shape: BatchShape) -> None:
        for _ in range(CAPTURE_AFTER):
            self.pass_of(shape)
        assert shape in self.shapes


def test_the_third_pass_of_a_bucket_captures_it() -> None:
    graphs = Counted()
    for _ in range(5):
        graphs.pass_of(SHAPE)
    times = 5 - (CAPTURE_AFTER - 1)
    replayed = dict.fromkeys(("replayed", "tail", "backward"), times)
    assert graphs.did == {"launched": CAPTURE_AFTER - 1, "captured": 1, "warmed up": 1, **replayed}


def test_a_pass_without_a_backward_is_one_graph_and_its_tail() -> None:
    graphs = Counted()
    for _ in range(CAPTURE_AFTER):
        graphs.pass_of(SHAPE, FORWARD)
    assert (graphs.did["replayed"], graphs.did["tail"], graphs.did["backward"]) == (1, 1, 0)


def test_a_capture_warms_up_unless_a_graph_that_takes_no_less_is_there() -> None:
    graphs = Counted()
    for shape in (SHAPE, replace(SHAPE, tokens=800), replace(SHAPE, tokens=1280)):
        graphs.capture(shape)
    assert graphs.did["captured"] == 3
    assert graphs.did["warmed up"] == 2, "the first, and the one with more tokens"


def test_a_graph_without_the_last_layers_tail_holds_no_memory_for_one_with_it() -> None:
    graphs = Counted(whole_tokens=800)
    for tokens in (1024, 800, 640):
        graphs.capture(replace(SHAPE, tokens=tokens))
    assert graphs.did["captured"] == 3
    assert graphs.did["warmed up"] == 2, "the first, and the first that has its last layer whole"


def test_the_graphs_that_were_used_last_are_kept() -> None:
    graphs = Unrecorded(2, Counter())
    for key in "abc":
        graphs.capture(key, HOST, lambda: None, None)
        if key == "b":
            graphs.replay("a", HOST)
    assert list(graphs) == ["a", "c"]
    assert "b" not in graphs
    graphs.forget()
    assert len(graphs) == 0


def test_a_larger_bucket_takes_passes_until_they_have_wasted_what_a_capture_costs() -> None:
    graphs, smaller = Counted(), replace(SHAPE, tokens=800)  # a pass of SHAPE is 0.28 longer
    graphs.capture(SHAPE)
    found = [graphs.shared(smaller) for _ in range(12)]
    assert found[:8] == [SHAPE] * 8, "eight times 0.28 is above 2"
    assert found[8:] == [smaller] * 4
    assert graphs.did["launched"] == CAPTURE_AFTER - 1 + 1, "once before the capture, so that its kernels are loaded"
    assert smaller in graphs.shapes


def test_of_larger_buckets_the_least_padded_takes_a_pass() -> None:
    graphs = Counted()
    for tokens in (1536, 1664, 1280):
        graphs.capture(replace(SHAPE, tokens=tokens))
    assert [shape.tokens for shape in graphs.larger(SHAPE, SAVED)] == [1280, 1536], "1664 is no less than a launch"
    assert list(graphs.larger(SHAPE, FORWARD)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 1056},
        {"sequences": 16},
        {"classes": (ClassSize(64, 4, 16),)},
        {"classes": (ClassSize(32, 4, 16), ClassSize(128, 4, 16))},
        {"has_dropout": True},
        {"tokens": 512},  # launching it costs no more
    ],
)
def test_a_bucket_takes_no_pass_that_does_not_fit_or_costs_as_much_as_launching(change: dict[str, Any]) -> None:
    graphs = Counted()
    graphs.capture(SHAPE)
    assert list(graphs.larger(replace(SHAPE, **change), SAVED)) == []


def test_graphs_of_other_buffers_are_forgotten_and_the_oldest_of_too_many() -> None:
    graphs = Counted()
    graphs.belong_to((1, 2))
    for count in range(MAX_GRAPHS + 1):
        graphs.capture(replace(SHAPE, tokens=1024 + 32 * count))
    assert len(graphs.shapes) == MAX_GRAPHS
    assert SHAPE not in graphs.shapes
    graphs.belong_to((1, 2))
    assert len(graphs.shapes) == MAX_GRAPHS
    graphs.belong_to((1, 3))
    assert graphs.shapes == []


@pytest.mark.parametrize(
    ("held", "peak", "reserved", "free", "allowed", "room"),
    [
        (20, 30, 30, 11, 100, True),
        (20, 30, 30, 10, 100, False),  # a pool's segments are rounded up
        (20, 30, 35, 15, 100, False),  # 15 lie in caches, of which passes may have left all
        (20, 45, 30, 25, 100, False),  # a pass took 25, before caches were emptied
        (20, 30, 30, 50, 40, False),  # of an operator's limit 10 are left
        (20, 30, 30, 50, 41, True),
    ],
)
def test_caches_are_emptied_where_the_pool_may_not_find_its_memory_beside_them(
    monkeypatch: pytest.MonkeyPatch, held: int, peak: int, reserved: int, free: int, allowed: int, room: bool
) -> None:
    """In GiB."""
    known = {
        "memory_allocated": held << 30,
        "max_memory_allocated": peak << 30,
        "memory_reserved": reserved << 30,
        "mem_get_info": (free << 30, 200 << 30),
        "get_per_process_memory_fraction": allowed / 200,
    }
    for name, value in known.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert Unrecorded(2, Counter())._has_room() is room


def test_a_bucket_is_launched_anew_before_it_is_captured_where_the_arena_moved() -> None:
    """The launch leaves its memory where a capture is weighed by it."""
    graphs = Counted()
    graphs.belong_to((1, 2))
    for _ in range(CAPTURE_AFTER - 1):
        graphs.pass_of(SHAPE)
    graphs.belong_to((1, 3))
    graphs.pass_of(SHAPE)
    assert graphs.did == {"launched": CAPTURE_AFTER}
    graphs.pass_of(SHAPE)
    assert graphs.did["captured"] == 1
