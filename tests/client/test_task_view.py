"""Why a job was stopped, as the board and the demo say it."""

from motet.api.resources import Exit
from motet.commands.task_view import why

from contract.states import ExitReason


def underperforming(rank: int, finished: int) -> str:
    seen = {"pattern": "ranks below the cut", "rank": rank, "finished": finished, "alive": 16, "kept": 4}
    return why(Exit(reason=ExitReason.UNDERPERFORMING, step=9, evidence=seen))


def test_a_rank_says_of_how_many_it_is():
    assert underperforming(13, 16) == "rank 13 of 16 after warmup, the best 4 go on"
    assert underperforming(5, 7) == "rank 5 of the first 7 after warmup, the best 4 of 16 go on"


def test_a_reason_without_numbers_says_its_pattern():
    bare = Exit(reason=ExitReason.DIVERGING, step=9, evidence={"pattern": "loss is not finite"})
    assert why(bare) == "loss is not finite"
