"""How a benchmarked search by a text metric is cut: by the texts of those who stand at the cut, once all do."""

from benchmarks.quality.base_set_pairs import spec_of
from benchmarks.quality.early_exit_driver import EarlyExitDriver
from benchmarks.quality.report import OURS
from contract.row_scores import RowScores
from contract.task_spec import TaskSpec
from tests.benchmarks.test_quality import PAIR, made

PROMPTS = 64


def test_texts_decide_who_goes_on_after_warmup() -> None:
    asked = {"evaluation": {"metrics": [{"type": "exact_match"}]}, "select_by": "exact_match"}
    spec = TaskSpec.model_validate(spec_of(PAIR, OURS).model_dump(mode="json") | asked)
    sweep = made({job: 1.0 + 0.01 * job for job in range(60)})
    driver = EarlyExitDriver(spec, sweep)
    driver.base_texts = RowScores.of_results([0.0] * PROMPTS)
    curves = {curve.job: curve for curve in sweep.curves}
    asked_at_once: list[int] = []
    while active := driver.active:
        for one in active:
            one.step += 1
            if one.due:
                driver.evaluated(one.index, *curves[one.index].at(one.step))
        due = driver.texts_due
        asked_at_once += [len(due)] * bool(due)
        for one in due:  # the worse by loss, the better by texts
            one.boundary_texts = RowScores.of_results([float(prompt <= one.index) for prompt in range(PROMPTS)])
        driver.decide_ranks()
    assert asked_at_once == [60]
    kept = sorted(one.index for one in driver.entrants.values() if one.reason == "completed")
    assert kept == list(range(60 - len(kept), 60)), "those with the most right answers, whatever their loss"
    assert 8 <= len(kept) <= 23
