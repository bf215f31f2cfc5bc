"""The memory model of generation: what it says is what is allocated, and admission leaves it room."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.policy.test_admission import DEMANDS, MIB, admit, capacity, demand
from worker.generate.batch_scheduler import GenerationLimits
from worker.generate.generator import Generator
from worker.generate.page_allocator import PageAllocator
from worker.generate.paged_cache import PagedCache
from worker.generate.plain_pass import PlainPass
from worker.generate.sequence import Sampling, Sequence
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.peak_memory import peak_bytes
from worker.model.plain.trainer import Trainer
from worker.policy.admission import fits, peak
from worker.policy.generation_memory import PAGE_TOKENS, GenerationShape, evaluation_bytes, pages_for, room_beside
from worker.replicas.text_generation import generation_shape

SHAPE = GenerationShape(16, 8, 64, 2048, 16384, 128_256, 2, graphs=32)  # of 1B on a GPU


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("sequences", "prompt", "temperature"), [(1, 40, 0.0), (8, 100, 1.0), (40, 150, 0.9)])
def test_what_is_allocated_is_what_the_model_says(tiny_base, dtype, sequences, prompt, temperature) -> None:
    backbone = Backbone.load(tiny_base.source, "cpu", dtype)
    trainer = Trainer(backbone, Arena(backbone.targets, 16, backbone.device))
    shape, pages = generation_shape(trainer), 1 + sequences * pages_for(prompt + 4)
    cache = PagedCache(backbone, pages, PAGE_TOKENS)
    assert shape.held_bytes(pages, sequences) == cache.keys.nbytes + cache.values.nbytes
    limits = GenerationLimits(sequences, 4096, backbone.max_positions)
    generator = Generator(PlainPass(trainer, cache), PageAllocator(pages, PAGE_TOKENS), limits, str)
    asked = [Sequence(tuple(range(1, prompt + 1)), Sampling(4, temperature, seed=at)) for at in range(sequences)]
    slot = trainer.arena.attach(8, 8.0)
    for one in asked[::2]:
        one.adapter = slot
    tables = [table for rotary in backbone.rotaries for table in rotary.table(prompt)]
    known = [*backbone.tensors(), trainer.arena.master, trainer.arena.grad, *tables, cache.keys, cache.values]
    found = peak_bytes(lambda: generator.run(asked), known)
    said = shape.pass_bytes(sequences, max(prompt, min(4096, sequences * prompt)))
    assert found <= said <= 4 * found


def test_jobs_beside_others_leave_room_for_generation_and_one_alone_uses_all() -> None:
    has = capacity(1000)
    first, second = demand("a", longest=3000, batch_size=1), demand("b", longest=3000, batch_size=1)
    left = has.usable_bytes - peak([first, second], has)
    assert fits(second, [first], replace(has, reserved_bytes=left))
    assert not fits(second, [first], replace(has, reserved_bytes=left + 1))
    assert fits(first, [], replace(has, reserved_bytes=has.usable_bytes)), "it would never start"


@given(DEMANDS, st.integers(150, 3000), st.integers(0, 300), st.integers(1, 64))
def test_what_jobs_leave_holds_the_reserve_and_a_pass_of_either(waiting, memory_mib, reserve_mib, sequences) -> None:
    has = replace(capacity(memory_mib), reserved_bytes=reserve_mib * MIB)
    small = GenerationShape(2, 2, 16, 64, 256, 1000, 4)
    running = admit([], waiting, has)
    room = room_beside(running, has, small, sequences, 100)
    rows = sum(one.adapter_rows for one in running)
    assert peak(running, has) + room <= has.usable_bytes
    assert has.model.predict(0, rows) + small.pass_bytes(sequences, 100) + room <= has.usable_bytes
    if len(running) > 1:
        assert has.usable_bytes - peak(running, has) >= has.reserved_bytes


def test_an_evaluation_wants_a_wave_kept_and_not_all_its_texts() -> None:
    tokens = 512
    wave = evaluation_bytes(SHAPE, 1000, tokens)
    assert wave == evaluation_bytes(SHAPE, 8, tokens) > evaluation_bytes(SHAPE, 1, tokens)
    assert SHAPE.pages_within(wave, 8) == 1 + 8 * pages_for(tokens)
    assert SHAPE.page_bytes == 2 * 16 * 8 * 64 * 64 * 2
