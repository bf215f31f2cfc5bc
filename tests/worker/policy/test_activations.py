"""Recompute or keep: whatever fits, and micro-batches that leave every job and the arena their room."""

from hypothesis import given
from hypothesis import strategies as st

from worker.policy.activations import Activations, Need, choose_activations, micro_batch_limit
from worker.policy.adapter_memory_model import Capacity, MemoryModel, capacity_after_oom
from worker.policy.admission import Demand, admission_refusal, peak

MIB = 2**20


def capacity(memory_mib: int = 1000, piece_tokens: int = 4000, again: float | None = 0.02) -> Capacity:
    recomputed = MemoryModel(110 * MIB, again * MIB, 2 * MIB, captured=5 * MIB) if again is not None else None
    kept = MemoryModel(100 * MIB, 0.2 * MIB, 2 * MIB, captured=40 * MIB)
    return Capacity(kept, memory_mib * MIB, piece_tokens, recomputed=recomputed)


def test_what_fits_is_kept_what_does_not_is_recomputed_and_the_reason_has_the_numbers() -> None:
    has = capacity()
    kept, again = choose_activations(has, 3000, [16, 64]), choose_activations(has, 20000, [16, 64])
    assert not kept.recompute
    assert kept.reason == (
        "activations are kept: a sequence of 3000 tokens beside 64 adapter rows takes 868 MiB of the 900 MiB that this worker "
        "may use"
    )
    assert again.recompute
    assert "takes 4268 MiB if they are kept and 643 MiB if not" in again.reason
    assert choose_activations(has, 10, [8], always=True).reason.endswith("MOTET_WORKER_RECOMPUTE is set")
    assert not choose_activations(capacity(again=None), 20000, [8], always=True).recompute


@given(
    st.integers(300, 4000),
    st.integers(64, 16384),
    st.lists(st.tuples(st.integers(8, 40000), st.lists(st.sampled_from([8, 64, 256]), min_size=1)), min_size=1, max_size=4),
    st.none() | st.integers(10, 20000),
)
def test_every_job_whose_longest_row_fits_fits_alone_at_the_micro_batches_chosen(memory_mib, most, tasks, failed) -> None:
    has = capacity(memory_mib)
    needs = [Need(has, longest, tuple(rows), choose_activations(has, longest, rows)) for longest, rows in tasks]
    shared = micro_batch_limit(needs, has, most)
    assert 1 <= shared <= most
    if failed is not None:
        has = capacity_after_oom(has, failed, 8)
    tokens = micro_batch_limit(needs, has, shared, shared=False)
    cut = Capacity(has.model, has.memory_bytes, tokens, recomputed=has.recomputed)
    for need in needs:
        for rows in need.adapter_rows:
            demand = Demand("job", "task", 16, 16 * need.longest, need.longest, rows, recompute=need.activations.recompute)
            alone = has.of(demand.recompute).predict(need.longest, rows) <= has.usable_bytes
            assert (admission_refusal(demand, cut) is None) == alone


def test_one_that_recomputes_costs_its_neighbours_nothing_but_its_pass() -> None:
    has = capacity(piece_tokens=1000)
    kept = Demand("kept", "a", 4, 400, 200, 16)
    long = Demand("long", "b", 1, 20000, 20000, 16, recompute=True)
    assert peak([long], has) == round((110 + 5 + 20000 * 0.02 + 16 * 2) * MIB)
    assert peak([kept], has) == round((100 + 40 + 800 * 0.2 + 16 * 2) * MIB)
    assert peak([kept, long], has) == round((110 + 40 + 20000 * 0.02 + 32 * 2) * MIB), "the larger pass and the larger pool"


def test_a_pass_that_found_no_memory_teaches_its_own_form() -> None:
    has = capacity()
    less = capacity_after_oom(has, 2000, 0, recompute=True)
    assert less.model == has.model
    assert less.of(True).predict(2000, 0) == has.memory_bytes
    turned = Activations(False, "")
    turned.copy_from(choose_activations(capacity_after_oom(has, 2000, 8), 2000, [8]))
    assert turned.recompute, "kept, it would take what was not there"
