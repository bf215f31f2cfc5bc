"""The quality benchmark's replays, over sweeps whose truth is known; and its sets, read from rows made here."""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality.base_set_pairs import PAIRS, SECOND_SEED, SETS, Pair, RowSet, spec_of
from benchmarks.quality.halved_searches import halved_searches
from benchmarks.quality.peers import asha_of, hyperband, random_subset, tpe
from benchmarks.quality.recorded_sweep import Curve, Sweep
from benchmarks.quality.replay import ASHA_FACTORS, ASHA_WARMUPS, loss_at, redrawn_regrets, replay, replay_live, watch_steps
from benchmarks.quality.report import OURS, POLICIES, figures_of, report, row_of
from benchmarks.quality.set_rows import rows_of
from benchmarks.result_file import this_machine
from contract.job_schedule import JobSchedule

PAIR = PAIRS[0]
TRAIN, VALIDATION, TEST = 600, 150, 250
BASE = 2.0


def made(final: dict[int, float], policy: str = "none", noise: float = 0.02, base: float = BASE) -> Sweep:
    """A sweep whose jobs go from the base's loss to their final one, on rows that are as hard for all of them."""
    draw = np.random.default_rng(0)
    hard = draw.normal(0, 0.3, VALIDATION + TEST)
    spec = spec_of(PAIR, policy)
    ours = spec_of(PAIR, OURS)
    others = [asha_of(ours, warmup, eta) for warmup in ASHA_WARMUPS for eta in ASHA_FACTORS]
    others += [spec_of(PAIR, one) for one in POLICIES]
    specs = [(spec_of(PAIR, "none"), None), (ours, None), *((one, ours) for one in others)]
    curves = []
    for job, config in enumerate(spec.jobs()):
        total = JobSchedule.of(spec, config, TRAIN).total_steps
        steps = sorted(watch_steps(specs, job, TRAIN))
        losses = [BASE + (final[job] - BASE) * (1 - math.exp(-8 * step / total)) for step in steps]
        totals = [(10 * (loss + hard + draw.normal(0, noise, len(hard)))).astype(np.float32) for loss in losses]
        ema = [loss + 0.0 for loss in losses]
        curves.append(Curve(job, config.model_dump(mode="json"), total, steps, ema, totals))
    return Sweep(
        pair=PAIR.name,
        policy=policy,
        seed=0,
        train_rows=TRAIN,
        tokens_per_row=50.0,
        validation_rows=VALIDATION,
        weights=[10] * (VALIDATION + TEST),
        lengths=[50] * (VALIDATION + TEST),
        base=(10 * (base + hard)).tolist(),
        curves=curves,
        tokens=1,
    )


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr("benchmarks.quality.report.DRAWS", 2)


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return made({job: 1.0 + 0.01 * ((job * 37) % 60) for job in range(60)})


def test_there_are_pairs_enough_and_half_of_the_sets_choose_nothing():
    assert len(PAIRS) >= 12
    assert len({pair.base for pair in PAIRS}) == 2
    for held in (False, True):
        sets = {pair.set for pair in PAIRS if pair.set.chooses is not held}
        assert sum(pair.set.chooses is not held for pair in PAIRS) >= 6
        assert {one.objective for one in sets} == {"sft", "dpo"}
    assert 3 * len(SECOND_SEED) >= len(PAIRS)
    assert spec_of(PAIR).early_exit == type(spec_of(PAIR).early_exit)(), "product defaults"


def test_the_replay_counts_what_the_product_would_train_and_read(sweep):
    """By ALTO's arithmetic: the cut keeps between 8 and 23 of 60, and the others trained a tenth."""
    ours, driver = replay(spec_of(PAIR, OURS), sweep)
    kept = sum(e.reason != "underperforming" for e in driver.entrants.values())
    assert 8 <= kept <= 23
    assert ours.saved == pytest.approx(0.9 * (1 - kept / 60), abs=0.01)
    parts = driver.parts
    rows = parts.full  # the base
    for e in driver.entrants.values():
        steps = [step for step in range(1, e.step + 1) if e.schedule.evaluates_at(step)]
        rows += sum(parts.full if step in e.schedule.rungs else parts.trend for step in steps)
        rows += parts.full if e.reason == "completed" else 0
    full = sum(e.schedule.total_steps * e.batch_size for e in driver.entrants.values())
    assert ours.evaluation_share == pytest.approx(rows / full)
    assert ours.evaluation_share <= 0.15
    assert ours.saved_net == pytest.approx(ours.saved - rows / full)


def test_the_best_is_found_and_beats_the_base_on_rows_nobody_saw(sweep):
    ours, _ = replay(spec_of(PAIR, OURS), sweep)
    whole, _ = replay(spec_of(PAIR, "none"), sweep)
    assert ours.winner == whole.winner == 0, "whose final loss is the lowest"
    assert ours.selection.beats_base
    assert ours.test.mean == pytest.approx(1.0, abs=0.1)


def test_peers_at_the_cost_of_ours_find_no_better(sweep):
    ours, _ = replay(spec_of(PAIR, OURS), sweep)
    _, full = replay(spec_of(PAIR, "none"), sweep)
    for peer in (random_subset, hyperband, tpe):
        found = peer(sweep, full, ours.tokens)
        assert 0.6 * ours.tokens < found.tokens <= ours.tokens
        assert found.unseen >= ours.test.mean - 0.02


def test_rounds_find_what_a_random_half_of_the_grid_misses():
    """Where one learning rate in five, with two batch sizes in four, is what does well."""
    rates = sorted({job.learning_rate for job in spec_of(PAIR).jobs()})
    final = {
        place: 1.0 + 0.3 * abs(rates.index(job.learning_rate) - 3) + 0.1 * (job.batch_size > 2) + 0.01 * (job.rank != 32)
        for place, job in enumerate(spec_of(PAIR).jobs())
    }
    found = halved_searches(spec_of(PAIR, OURS), made(final))
    assert found["tpe_rounds"].unseen < found["random_half"].unseen
    assert found["tpe_rounds"].tokens == pytest.approx(found["random_half"].tokens, rel=0.25)


def test_a_row_of_the_report_has_every_figure(sweep):
    row = row_of(sweep, None, False)
    assert row["full"]["regret"] == pytest.approx(1.0, abs=0.02)
    assert row["policies"][OURS]["regret_interval"][0] <= row["policies"][OURS]["regret"]
    figures = figures_of([row, row | {"held": True, "pair": "other"}])
    wanted = "pairs samples_saved_sft_mean net_tokens_saved_mean regret_mean regret_max regret_full_mean none_said none_wrong"
    wanted += " redrawn_regret_ours_mean redrawn_regret_ours_mean_se redrawn_regret_full_max"
    for name in (*wanted.split(), "x_random", "x_asha", "x_hyperband", "x_tpe", "best_loss_ratio_mean"):
        assert {name, f"{name}_held"} <= figures.keys()
    json.dumps(row)


def test_redrawn_rows_are_the_same_rows_in_other_parts(sweep):
    drawn = sweep.redrawn(3)
    assert (drawn.validation_rows, drawn.test_rows) == (VALIDATION, TEST)
    for before, after in zip(sweep.curves[:3], drawn.curves, strict=False):
        assert after.steps == before.steps
        for one, other in zip(before.totals, after.totals, strict=True):
            assert sorted(one) == sorted(other)
            assert not np.array_equal(one, other)
    base, redrawn = sweep.validation(sweep.base, VALIDATION), drawn.validation(drawn.base, VALIDATION)
    assert base.mean != redrawn.mean
    assert sweep.redrawn(3).base == drawn.base != sweep.redrawn(4).base


def test_regrets_of_draws_are_small_where_all_rows_agree(sweep):
    found = redrawn_regrets(spec_of(PAIR, OURS), spec_of(PAIR, "none"), sweep, 2)
    assert all(abs(regret - 1) < 0.05 for both in found for regret in both)


def test_a_search_that_learns_nothing_is_said_to_have_no_winner():
    nothing = made(dict.fromkeys(range(60), BASE))
    ours, _ = replay(spec_of(PAIR, OURS), nothing)
    assert ours.selection.beats_base is False


def test_a_search_that_rightly_says_none_regrets_nothing():
    harmed = made({job: BASE + 0.1 + 0.01 * ((job * 37) % 60) for job in range(60)})
    row = row_of(harmed, None, False)
    ours, base = row["policies"][OURS], row["base_unseen"]
    assert (ours["none_said"], ours["none_wrong"], ours["unseen"] > base) == (True, False, True)
    assert (ours["regret"], row["full"]["regret"], row["best_unseen"]) == (1.0, 1.0, base)
    assert {peer["x"] for peer in row["peers"].values()} == {1.0}


def test_a_report_takes_the_sweeps_that_it_lacks_from_an_earlier_one(sweep, tmp_path):
    state, out, earlier = tmp_path / "state", tmp_path / "out", tmp_path / "earlier.json"
    state.mkdir()
    sweep.machine = this_machine()
    sweep.write(state / "one.npz")
    (state / "gate.json").write_text('{"passed": true}')
    old = [row_of(sweep, None, False) | {"pair": pair, "train_rows": 1} for pair in (sweep.pair, PAIRS[1].name)]
    told = {**this_machine(), "commit": "earlier", "rows": old}
    earlier.write_text(json.dumps(told))

    report(state, "now", out=out, beside=earlier)

    rows = json.loads((out / "quality.json").read_text())["rows"]
    assert [(row["pair"], row["commit"], row["train_rows"]) for row in rows] == [
        (sweep.pair, "now", TRAIN),
        (PAIRS[1].name, "earlier", 1),
    ]
    earlier.write_text(json.dumps(told | {"device": "another"}))
    with pytest.raises(ValueError, match="is of another"):
        report(state, "now", out=out, beside=earlier)


def test_a_sweep_is_the_same_from_its_file(sweep, tmp_path):
    path = tmp_path / "sweep.npz"
    sweep.write(path)
    read = Sweep.read(path)
    assert replay(spec_of(PAIR, OURS), read)[0] == replay(spec_of(PAIR, OURS), sweep)[0]


def test_a_live_record_that_the_policy_would_not_repeat_is_refused(sweep):
    told, driver = replay(spec_of(PAIR, OURS), sweep)
    live = made({job: 1.0 + 0.01 * ((job * 37) % 60) for job in range(60)}, OURS)
    live.reasons = {job: e.reason for job, e in driver.entrants.items()}
    assert replay_live(live, spec_of(PAIR, OURS)).winner == told.winner
    live.reasons[0] = "diverging"
    with pytest.raises(ValueError, match="decides otherwise"):
        replay_live(live, spec_of(PAIR, OURS))


def test_a_job_whose_validation_loss_was_not_finite_ranks_last_from_then_on(sweep):
    sweep = copy.deepcopy(sweep)
    curve = sweep.curves[3]
    curve.steps, curve.ema, curve.totals = (part[:4] for part in (curve.steps, curve.ema, curve.totals))
    curve.totals[-1] = np.full_like(curve.totals[-1], math.nan)
    last = curve.steps[-1]
    assert curve.diverged_at == last + 1
    assert math.isfinite(loss_at(sweep, 3, curve.steps[-2], VALIDATION))
    assert loss_at(sweep, 3, last, VALIDATION) == loss_at(sweep, 3, curve.total_steps, VALIDATION) == math.inf
    _, driver = replay(spec_of(PAIR, "none"), sweep)
    assert driver.entrants[3].reason == "diverging"
    assert driver.entrants[3].step <= last + 1


def test_a_row_is_a_line_whatever_its_text_holds(tmp_path):
    rows = [{"prompt": f"{n}\u2028", "completion": "\x85 \x1c"} for n in range(8)]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    task, test = rows_of(RowSet("set", ("set.jsonl",), True), tmp_path, tmp_path, None)
    found = [json.loads(line) for file in (task, test) for line in file.read_text(encoding="utf-8").split("\n") if line]
    assert sorted(row["prompt"] for row in found) == [row["prompt"] for row in rows]


def test_no_row_is_on_both_sides(tmp_path):
    rows = [{"messages": [{"role": "user", "content": f"q{n % 40}"}, {"role": "assistant", "content": "a"}]} for n in range(60)]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task, test = rows_of(RowSet("set", ("set.jsonl",), True), tmp_path, Path(tmp_path), None)
    one, other = (set(path.read_text().splitlines()) for path in (task, test))
    assert (len(one), len(other)) == (30, 10)
    assert not one & other


def test_swapped_pairs_prefer_a_rows_own_answer(tmp_path):
    rows = [{"messages": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": f"a{n}"}]} for n in range(8)]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task, test = rows_of(RowSet("set", ("set.jsonl",), False, "dpo", swapped=True), tmp_path, tmp_path, None)
    for line in (task.read_text() + test.read_text()).splitlines():
        pair = json.loads(line)
        asked = pair["input"]["messages"][0]["content"]
        assert pair["preferred_output"][0]["content"] == asked.replace("q", "a")
        assert pair["non_preferred_output"][0]["content"] != pair["preferred_output"][0]["content"]


def test_a_pair_is_named_by_base_and_set():
    assert Pair("llama-7m", SETS["mawps"]).name == "llama-7m.mawps"
