"""What is asked at once is done in one go: by tenant, in order, no more than fit; who asks during a go is in the next."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from structlog.contextvars import bound_contextvars, get_contextvars

from service.tenants.request_coalescer import MAX_COOLDOWN_SECONDS, RequestCoalescer, in_thread
from tests.service.live_server import PATIENCE


class Goes:
    """Goes that end when they are let, with what was asked in each."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, list[str]]] = []
        self.at: list[float] = []
        self.let = asyncio.Event()
        self.fails = False

    async def act(self, owner: str, asked: list[str]) -> dict[str, str]:
        self.begun.append((owner, asked))
        self.at.append(asyncio.get_running_loop().time())
        await self.let.wait()
        if self.fails:
            raise ValueError("it cannot be done")
        return {one: one.upper() for one in asked if one != "nothing"}

    async def begins(self, count: int) -> None:
        while len(self.begun) < count:
            await asyncio.sleep(0)


class ClockedLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while anything can run, and then jumps to the next timer: a slow machine changes no order."""

    def __init__(self) -> None:
        self._clock = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._clock

    def jump(self, seconds: float) -> None:
        self._clock += seconds


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: ClockedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(None if timeout is None else 0.0)
        if not found and timeout is not None:
            self._loop.jump(max(0.0, timeout))
        return found


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=ClockedLoop) as runner:
        runner.run(asyncio.wait_for(body(), PATIENCE))


def asking(coalescer: RequestCoalescer[str, str, str], who: str, *asked: str) -> list[asyncio.Future[str | None]]:
    return [asyncio.ensure_future(coalescer.submit(who, one)) for one in asked]


async def all_of(*futures: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*futures, return_exceptions=True)


def test_who_asks_during_a_go_is_in_the_next_and_each_gets_his_own_answer() -> None:
    async def body() -> None:
        goes = Goes()
        coalescer = RequestCoalescer(goes.act)
        first = asking(coalescer, "a", "x")
        await goes.begins(1)
        others = asking(coalescer, "a", "z", "y", "nothing", "z")
        await asyncio.sleep(0)
        goes.let.set()
        assert await all_of(*first, *others) == ["X", "Z", "Y", None, "Z"]
        assert goes.begun == [("a", ["x"]), ("a", ["z", "y", "nothing"])]

    run(body)


def test_a_full_go_leaves_the_others_to_the_next() -> None:
    async def body() -> None:
        goes = Goes()
        goes.let.set()
        coalescer = RequestCoalescer(goes.act, max_group_size=3)
        names = [f"n{number}" for number in range(8)]
        assert await all_of(*asking(coalescer, "a", *names)) == [name.upper() for name in names]
        assert goes.begun == [("a", names[:3]), ("a", names[3:6]), ("a", names[6:])]

    run(body)


def test_tenants_have_goes_of_their_own_and_take_turns() -> None:
    async def body() -> None:
        goes = Goes()
        coalescer = RequestCoalescer(goes.act, semaphore=asyncio.Semaphore(1))
        waiting = asking(coalescer, "a", "x")
        await goes.begins(1)
        waiting += asking(coalescer, "b", "x") + asking(coalescer, "c", "x")
        await asyncio.sleep(0)
        waiting += asking(coalescer, "b", "y")  # while it waits for its turn, the go of b is still open
        assert goes.begun == [("a", ["x"])]
        goes.let.set()
        assert await all_of(*waiting) == ["X", "X", "X", "Y"]
        assert goes.begun == [("a", ["x"]), ("b", ["x", "y"]), ("c", ["x"])]

    run(body)


def test_a_go_that_fails_fails_for_those_in_it_alone() -> None:
    async def body() -> None:
        goes = Goes()
        coalescer = RequestCoalescer(goes.act)
        goes.let.set()
        goes.fails = True
        answers = await all_of(*asking(coalescer, "a", "x", "y"))
        assert [type(answer) for answer in answers] == [ValueError, ValueError]
        goes.fails = False
        assert await all_of(*asking(coalescer, "a", "x")) == ["X"]
        assert not coalescer._pending
        assert not coalescer._newest

    run(body)


def test_who_goes_away_takes_nobody_along() -> None:
    async def body() -> None:
        goes = Goes()
        coalescer = RequestCoalescer(goes.act)
        gone, stays = asking(coalescer, "a", "x", "y")
        await goes.begins(1)
        gone.cancel()
        goes.let.set()
        assert await stays == "Y"
        assert gone.cancelled()

    run(body)


def test_what_nobody_waits_for_any_more_is_not_done() -> None:
    async def body() -> None:
        goes = Goes()
        coalescer = RequestCoalescer(goes.act, max_group_size=2)
        waiting = asking(coalescer, "a", "v")
        await goes.begins(1)
        waiting += asking(coalescer, "a", "w", "x", "x", "y", "z")  # w and x, y and z
        await asyncio.sleep(0)
        for number in (1, 2, 4, 5):  # one of those who ask for x stays
            waiting[number].cancel()
        goes.let.set()
        answers = await all_of(*waiting)
        assert [answers[0], answers[3]] == ["V", "X"]
        assert goes.begun == [("a", ["v"]), ("a", ["x"])]

    run(body)


def test_a_go_is_no_one_requests() -> None:
    async def body() -> None:
        said: list[dict[str, Any]] = []

        async def act(owner: str, asked: list[str]) -> dict[str, str]:
            said.append(get_contextvars())
            return {}

        with bound_contextvars(request_id="mine"):
            await all_of(*asking(RequestCoalescer(act), "a", "x"))
        assert said == [{}]

    run(body)


@pytest.mark.parametrize(
    ("how", "asked", "least"),
    [
        ({"min_interval_seconds": 1.0}, "x", 1.0),
        ({"cooldown_factor": 2.0}, "xw", 0.06),
        ({"cooldown_factor": 1000.0}, "xw", 0.02 + MAX_COOLDOWN_SECONDS),
    ],
)
def test_a_tenants_next_go_waits_and_anothers_does_not(how: dict[str, float], asked: str, least: float) -> None:
    async def body() -> None:
        began = await three_goes(how, asked)
        assert began["y"] - began["x"] >= least - 1e-6
        assert began["z"] < began["y"]

    run(body)


def test_who_asks_one_by_one_does_not_wait() -> None:
    async def body() -> None:
        began = await three_goes({"cooldown_factor": 1000.0}, "x", MAX_COOLDOWN_SECONDS / 2)
        assert began["y"] < began["z"]

    run(body)


async def three_goes(how: dict[str, float], asked: str, pause: float = 0.0) -> dict[str, float]:
    """When goes began: of tenant a for `asked`, which takes 20 ms, of a for y, meanwhile, and of b for z, `pause` later."""
    goes = Goes()
    coalescer = RequestCoalescer(goes.act, **how)
    waiting = asking(coalescer, "a", *asked)
    await goes.begins(1)
    waiting += asking(coalescer, "a", "y")
    await asyncio.sleep(0.02)
    goes.let.set()
    await asyncio.sleep(pause)
    waiting += asking(coalescer, "b", "z")
    await all_of(*waiting)
    return dict(zip([first for _, (first, *_) in goes.begun], goes.at, strict=True))


def test_a_go_that_waits_is_for_all_who_come_meanwhile() -> None:
    async def body() -> None:
        goes = Goes()
        goes.let.set()
        coalescer = RequestCoalescer(goes.act, min_interval_seconds=0.1)
        assert await all_of(*asking(coalescer, "a", "w")) == ["W"]
        waiting = asking(coalescer, "a", "x")
        await asyncio.sleep(0)
        waiting += asking(coalescer, "a", "y")
        assert await all_of(*waiting) == ["X", "Y"]
        assert goes.begun == [("a", ["w"]), ("a", ["x", "y"])]

    run(body)


def test_an_act_may_be_a_thread() -> None:
    async def body() -> None:
        coalescer = RequestCoalescer(in_thread(lambda owner, asked: {one: owner for one in asked}))
        assert await all_of(*asking(coalescer, "a", "x", "y")) == ["a", "a"]

    asyncio.run(asyncio.wait_for(body(), PATIENCE))  # a thread's time is the machine's
