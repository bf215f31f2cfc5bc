"""The figures of benchmarks/step.py by name, from its rows. A part that was skipped has no figures."""

from statistics import median
from typing import Any

from benchmarks.llama_shapes import LLAMA_1B
from benchmarks.pass_timing import BASE, GROUPED, LOOP, MIXED, OURS, OURS_FP8, SOLO, UNIFORM
from benchmarks.sequential_peft import COMPILED, SEQUENTIAL

PEAK_FLOPS = 989e12  # H100 and H200 SXM, dense bf16, the vendor's datasheet
STEP = "the executor's step, consecutive batches"
FP8 = "fp8: "  # how rows of a base in fp8 begin
COPY = "device-to-device copy"
Rows = list[dict[str, Any]]


def figures(rows: Rows) -> dict[str, float]:
    """The figures by name. Ratios between neighbouring blocks are medians of their pairs, with the least and the most."""
    parts = (_steps, _passes, _peers, _coded, _mixed, _small, _optimizers, _sequential, _large)
    found = {name: value for part in parts for name, value in part(rows).items()}
    return {name: round(value, 4) for name, value in found.items()}


def _all(rows: Rows, what: str, **match: Any) -> Rows:
    return [row for row in rows if row["what"] == what and all(row.get(key) == value for key, value in match.items())]


def _ms(rows: Rows, what: str, **match: Any) -> float:
    ms: float = _all(rows, what, **match)[0]["ms"]
    return ms


def _paired(name: str, suffix: str, ratios: list[float], less: float = 0.0) -> dict[str, float]:
    values = {"": median(ratios), "_least": min(ratios), "_most": max(ratios)}
    return {f"{name}{kind}{suffix}": value - less for kind, value in values.items()}


def _steps(rows: Rows) -> dict[str, float]:
    found = {f"step_ms_bs{row['batch']}": row["step_ms"] for row in _all(rows, STEP)}
    for row in _all(rows, STEP, batch=1):
        found |= {name: row[name] for name in ("label_fraction", "tail_fraction")} | {"tokens_per_s_bs1": row["tokens_per_s"]}
    return found


def _passes(rows: Rows) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in _all(rows, f"forward + backward, {OURS}", model="1B"):
        batch = row["batch"]
        base = _ms(rows, f"forward + backward, {BASE}", model="1B", batch=batch)
        found |= _paired("lora_tax", f"_bs{batch}", row.get("over_base", [row["ms"] / base]), 1.0)
        if batch in (1, 4):
            found[f"base_ms_bs{batch}"] = base
        if batch == 4:
            flops = 4 * (LLAMA_1B.matrix_parameters * row["tokens"] + LLAMA_1B.hidden * LLAMA_1B.vocabulary * row["labels"])
            found["mfu_bs4"] = flops / (row["ms"] / 1e3) / PEAK_FLOPS
    return found


def _peers(rows: Rows) -> dict[str, float]:
    found = {}
    ours = f"forward + backward, {OURS}"
    worst = [
        row["ms"] / _ms(rows, ours, batch=row["batch"], model=row["model"])
        for row in _all(rows, f"forward + backward, {GROUPED}")
    ]
    if worst:
        found["x_grouped_mm_min"] = min(worst)
    for row in _all(rows, f"forward + backward, {LOOP}", batch=1, model="1B"):
        found["x_loop_bs1"] = row["ms"] / _ms(rows, ours, batch=1, model="1B")
    for row in _all(rows, f"packing: {SOLO}"):
        found[f"x_solo_graphed_bs{row['batch']}"] = row["ms"] / _ms(rows, f"packing: {OURS}", batch=row["batch"])
    return found


def _coded(rows: Rows) -> dict[str, float]:
    found = {f"step_ms_fp8_bs{row['batch']}": row["step_ms"] for row in _all(rows, FP8 + STEP)}
    for row in _all(rows, f"{FP8}forward + backward, {OURS_FP8}"):
        found |= _paired("fp8_over_bf16_base", f"_bs{row['batch']}", row["over_base"])
    return found


def _mixed(rows: Rows) -> dict[str, float]:
    """mixed_rank_ratio: the worse of batch 1 and 4 with 32 adapters."""
    found: dict[str, float] = {}
    for row in _all(rows, f"mixed ranks: {MIXED}", adapters=32):
        found[f"mixed_rank_ratio_bs{row['batch']}"] = median(row["over_uniform"])
        found[f"uniform_rank_ms_bs{row['batch']}"] = _ms(rows, f"mixed ranks: {UNIFORM}", batch=row["batch"], adapters=32)
    ratios = [value for name, value in found.items() if name.startswith("mixed_rank_ratio")]
    return found | ({"mixed_rank_ratio": max(ratios)} if ratios else {})


def _small(rows: Rows) -> dict[str, float]:
    return {f"ms_{row['adapters']}x1": row["ms"] for row in _all(rows, "forward + backward, few adapters")}


def _optimizers(rows: Rows) -> dict[str, float]:
    found = {
        f"optimizer_ms_{name}": row["ms"]
        for name, kind in (("fp32", "fp32"), ("8bit", "8-bit"))
        for row in _all(rows, f"optimizer, {kind} moments")
    }
    for row in _all(rows, COPY):
        found["copy_bytes_per_s"] = row["bytes_per_s"]
    return found


def _sequential(rows: Rows) -> dict[str, float]:
    return {
        f"x_sequential{name}_bs{row['batch']}": row["ms"] / _all(rows, STEP, batch=row["batch"])[0]["step_ms"]
        for name, what in (("", SEQUENTIAL), ("_compiled", COMPILED))
        for row in _all(rows, what)
    }


def _large(rows: Rows) -> dict[str, float]:
    found = {}
    for row in rows:
        if row["what"].startswith("step on the 8B"):
            found["peak_gb_8b_32"] = row["peak_gb"]
    for row in _all(rows, f"forward + backward, {OURS}", model="8B"):
        alone = _ms(rows, f"forward + backward, {BASE}", model="8B")
        found |= {"ms_8b_16": row["ms"], "lora_tax_8b_16": row["ms"] / alone - 1}
    return found
