"""Generates the tables of docs/BENCHMARKS.md, the README's headlines and the plots of docs/ from result files.

    python -m benchmarks.readme_figures

Measures nothing. Each text stands between two marker comments on its page and is replaced there.
"""

import json
import math
import re
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.quality import readme_table as quality
from benchmarks.real_arrivals.cell_table import scheduling
from benchmarks.result_file import RESULTS
from benchmarks.rivals.table import rivals
from benchmarks.sharing_sim.table import sharing

ROOT = Path(__file__).parent.parent
STEP, SWEEP, QUALITY = "step-h200.json", "sweep-h200.json", "quality-h200.json"
WEB, SCHEDULER, SHARING = "web-cpu.json", "scheduler-cpu.json", "sharing_sim-cpu.json"
PARALLEL, COMPANY, RIVALS = "parallel-h200x4.json", "sharing-h200.json", "rivals-h200.json"
CONTESTANTS = (
    ("PEFT, one adapter after another", "sequential PEFT", "#b8b8b8"),
    ("PyTorch loop over adapters", "forward + backward, PyTorch loop", "#9a9a9a"),
    ("torch grouped_mm, padded ranks", "forward + backward, torch grouped_mm, padded", "#7f8fb0"),
    ("Motet", "forward + backward, ours", "#1f5fbf"),
    ("the frozen base alone", "forward + backward, base alone", "#d08a2e"),
)
_PEFT, *_OTHERS = [(name, what) for name, what, _ in CONTESTANTS]
TABLE_ROWS = [_PEFT, ("the same under torch.compile", "sequential PEFT, torch.compile"), *_OTHERS]
WIDTH, ROW, LEFT, RIGHT = 760, 26, 230, 70


def milliseconds(rows: list[dict[str, Any]], what: str, batch: int) -> float | None:
    found = [row["ms"] for row in rows if row["what"] == what and row.get("batch") == batch and row.get("model", "1B") == "1B"]
    return found[0] if found else None


def table(result: dict[str, Any]) -> str:
    """Milliseconds of every contestant at batch 1, 2 and 4, as Markdown."""
    lines = [
        "32 adapters of ranks 16, 32, 64 on Llama-3.2-1B's shape, GSM8K's row lengths, forward and backward in milliseconds\n"
        f"on one {result['device']} (torch {result['versions']['torch']}, commit {result['commit']}, {result['date'][:10]}):\n",
        "| | batch 1 | batch 2 | batch 4 |",
        "|---|---|---|---|",
    ]
    for name, what in TABLE_ROWS:
        cells = [milliseconds(result["rows"], what, batch) for batch in (1, 2, 4)]
        lines.append(f"| {name} | " + " | ".join("" if ms is None else f"{ms:,.0f}" for ms in cells) + " |")
    f = result["figures"]
    lines += [
        "",
        f"The executor's whole step (upload, losses, clipping and AdamW included) takes {f['step_ms_bs1']:.1f}, "
        f"{f['step_ms_bs2']:.1f} and {f['step_ms_bs4']:.1f} ms:\n{f['tokens_per_s_bs1']:,.0f} tokens a second at batch 1. "
        f"32 adapters cost {f['lora_tax_bs1']:.1%}, {f['lora_tax_bs2']:.1%} and {f['lora_tax_bs4']:.1%} over the frozen base "
        "(aims: 14 % at\nbatch 1, 9 % at batch 4). 32 adapters on Llama-3.1-8B's shape with checkpointing and 8-bit moments "
        f"peak at {f['peak_gb_8b_32']:.0f} GB.\nAll figures and how they were taken: `benchmarks/results/{STEP}`.",
    ]
    return "\n".join(lines)


def search(result: dict[str, Any]) -> str:
    """A whole search beside the same configurations trained one after another, as Markdown."""
    f = result["figures"]
    (split,) = (row for row in result["rows"] if row["what"] == "where the search's seconds went")
    seconds = {name: value for name, value in split.items() if name != "what"}
    shares = ", ".join(f"{name} {value / sum(seconds.values()):.0%}" for name, value in seconds.items())
    lines = [
        "60 configurations on Llama-3.2-1B's shape (random weights) over rows of GSM8K, from loading the base to the stored\n"
        f"adapters, on one {result['device']} whose kernels are compiled (commit {result['commit']}, {result['date'][:10]}):\n",
        "| | minutes |",
        "|---|---|",
        "| PEFT, eager, one after another: measured steps times their number, training alone "
        f"| {60 * f['hours_sequential']:.0f} |",
    ]
    if "hours_sequential_fastest" in f:
        minutes = 60 * f["hours_sequential_fastest"]
        lines.append(f"| the same, compiled at the batch sizes where that is measured and faster | {minutes:.0f} |")
    if "hours_solo_graphed" in f:
        minutes = 60 * f["hours_solo_graphed"]
        lines.append(f"| Motet's own steps as CUDA graphs, one job after another: likewise | {minutes:.1f} |")
    if "minutes_batching_only" in f:
        lines.append(f"| Motet without early exit: measured on fewer rows, scaled | {f['minutes_batching_only']:.1f} |")
    lines += [f"| Motet, {f['samples_saved']:.0%} of the samples saved | {f['minutes_ours']:.1f} |", ""]
    for name, text in (
        ("sequential", "That is {:.1f} times faster than PEFT{} (aim: 40)."),
        ("solo_graphed", "Than Motet's own steps, one job after another, it is {:.2f} times faster{} (aim: 5)."),
    ):
        if f"x_{name}" in f:
            whole = f.get(f"x_{name}_batching_only")
            lines.append(text.format(f[f"x_{name}"], "" if whole is None else f", {whole:.1f} without early exit"))
    lines += [f"Where its seconds went: {shares}.", f"Idle is {f['idle_fraction']:.1%} (aim: under 6 %)."]
    lines[-1] += f" All figures and how they were taken: `benchmarks/results/{SWEEP}`."
    return "\n".join(lines)


def several_devices(result: dict[str, Any]) -> str:
    """Steps of 32 jobs on one device and on several, as Markdown."""
    cells: dict[tuple[str, int], dict[int, list[dict[str, Any]]]] = {}
    for row in result["rows"]:
        cells.setdefault((row["model"], row["batch"]), {}).setdefault(row["gpus"], []).append(row)
    lines = [
        f"Mean steps of 32 jobs over a replica of the base on each of {max(max(found) for found in cells.values())} "
        f"{result['device']}s, a process each (torch {result['versions']['torch']},\ncommit {result['commit']}, "
        f"{result['date'][:10]}). Times faster: by tokens a second.\n",
        "| base, batch | tokens a step | one GPU, ms | GPUs | ms | times faster |",
        "|---|---|---|---|---|---|",
    ]
    for (model, batch), found in cells.items():
        alone = found.pop(1)
        tokens, ms, speed = (fmean(row[name] for row in alone) for name in ("tokens_per_step", "ms", "tokens_per_s"))
        lines += [
            f"| {model}, {batch} | {tokens:,.0f} | {ms:.0f} | {gpus} | {row['ms']:.0f} | {row['tokens_per_s'] / speed:.2f} |"
            for gpus, (row,) in found.items()
        ]
    return "\n".join([*lines, "", f"All figures: `benchmarks/results/{PARALLEL}`."])


def company(result: dict[str, Any]) -> str:
    """Tasks of several tenants on one warm executor, as sentences of Markdown."""
    f = result["figures"]
    alone, bounded = (next(row for row in result["rows"] if row["what"].startswith(what)) for what in ("one after", "bound"))
    crowds = [row for row in result["rows"] if row["what"].endswith("at once")]
    together = " and ".join(f"{row['tasks']} at once {f['x_' + str(row['tasks'])]:.2f}" for row in crowds)
    return (
        "Tasks of one job of batch 2 on Llama-3.2-1B's shape, each of a tenant of its own, "
        f"{alone['of_a_task'][1]:.0f} s alone, on one warm executor of\n"
        f"one {result['device']} (commit {result['commit']}, {result['date'][:10]}): beside one after another "
        f"{together} times as fast; with `max_slowdown` 4\n({f['tasks_at_a_time_bound_4']:.0f} at a time) {f['x_bound_4']:.2f} "
        f"times, the median task {bounded['slowdown'][1]:.2f} times slower than alone, the slowest\n"
        f"{f['worst_slowdown_bound_4']:.2f} (aim: 4). A task takes its first step {f['attach_s']:.2f} s after its attach "
        f"(median; {alone['first_step_s'][1]:.2f} where it\nis alone; aim: 0.3). Losses alone and in company differ by "
        f"{result['gate']['worst_error']:.2%} on average. All figures: `benchmarks/results/{COMPANY}`."
    )


def dashboard(result: dict[str, Any]) -> str:
    """The dashboard's speed in a browser, as a sentence of Markdown."""
    f, cores = result["figures"], next(row["cores"] for row in result["rows"] if "cores" in row)
    return (
        f"A tenant with {result['gate']['tasks']} tasks, in headless Chromium on {cores} cores that the service shares "
        f"(commit {result['commit']}, {result['date'][:10]}): the\nlist's first contentful paint comes after "
        f"{f['fcp_ms']:.0f} ms (aim: 1,000), the longest interaction takes {f['interaction_ms']:.0f} ms (200), and the page "
        f"of a task\nwith {result['gate']['rows']} jobs of 5,000 points is drawn after {f['task_page_ms']:.0f} ms (1,500) "
        f"and weighs {f['page_kb']:.0f} kB. All figures: `benchmarks/results/{WEB}`."
    )


def plot(result: dict[str, Any]) -> str:
    """Bars of batch 1 on a logarithmic axis, as SVG."""
    bars = [(name, milliseconds(result["rows"], what, 1), colour) for name, what, colour in CONTESTANTS]
    known = [(name, ms, colour) for name, ms, colour in bars if ms is not None]
    decades = math.log10(max(ms for _, ms, _ in known)) - 1  # the axis starts at 10 ms
    span = WIDTH - LEFT - RIGHT

    def reach(ms: float) -> float:
        return span * (math.log10(ms) - 1) / decades

    height = ROW * (len(known) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="8" y="18">One pass over 32 adapters, batch 1: milliseconds (logarithmic)</text>',
    ]
    for place, (name, ms, colour) in enumerate(known):
        y = ROW * (place + 1)
        parts.append(f'<text x="{LEFT - 8}" y="{y + 18}" text-anchor="end">{name}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 4}" width="{reach(ms):.1f}" height="{ROW - 8}" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + reach(ms) + 6:.1f}" y="{y + 18}">{ms:,.0f}</text>')
    return "\n".join([*parts, "</svg>", ""])


def bars(title: str, rows: list[tuple[str, float, str]], unit: str) -> str:
    """Horizontal bars on a linear axis from zero, as SVG. `rows`: name, value, colour."""
    span, most, height = WIDTH - LEFT - RIGHT, max(value for _, value, _ in rows), ROW * (len(rows) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="18">{title}</text>',
    ]
    for place, (name, value, colour) in enumerate(rows):
        y, length = ROW * (place + 1), span * value / most
        parts.append(f'<text x="{LEFT - 8}" y="{y + 18}" text-anchor="end">{name}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + length + 6:.1f}" y="{y + 18}">{value:,.3g}{unit}</text>')
    return "\n".join([*parts, "</svg>", ""])


def search_plot(result: dict[str, Any]) -> str:
    """Minutes of a whole search, as SVG."""
    f = result["figures"]
    rows = [
        ("PEFT, one after another", 60 * f["hours_sequential"], "#b8b8b8"),
        ("Motet, one job after another", 60 * f.get("hours_solo_graphed", 0.0), "#9a9a9a"),
        ("Motet without early exit", f.get("minutes_batching_only", 0.0), "#7f8fb0"),
        ("Motet", f["minutes_ours"], "#1f5fbf"),
    ]
    rows = [row for row in rows if row[1]]
    return bars("A search of 60 configurations: minutes", rows, "")


def quality_plot(result: dict[str, Any]) -> str:
    """Samples saved by the default policy, set by set, as SVG."""
    once = [row for row in result["rows"] if not row.get("seed")]
    saved = [(row["pair"], 100 * row["policies"][quality.OURS]["saved"], "#1f5fbf") for row in once]
    return bars("Samples saved by early exit: % of full training", saved, " %")


def early_exit(sets: dict[str, Any]) -> str:
    """What early exit saves, and what its winner is worth, in sentences."""
    q, worst = sets["figures"], max(sets["rows"], key=lambda row: row["live"]["regret"])
    pair = f"{worst['pair']} ({worst['objective'].upper()}, {worst['judged_rows']} validation rows)"
    return (
        f"**Early exit.** It saves {q['samples_saved_sft_mean']:.0%} of the samples of supervised searches, and "
        f"{q['net_tokens_saved_mean']:.0%} of all tokens net of evaluations ({q['pairs']} pairs of base\nand set). On rows "
        "that neither training nor selection saw its winner's loss is, in the median, "
        f"{q['regret_plain_median']:.3f} times that of full training's best\nweights (a winner may be a mean of weights), "
        f"{q['regret_median']:.3f} times where those are averaged alike, when full training's own winner\nhas "
        f"{q['regret_full_median']:.3f}. The worst is {pair}: {worst['live']['regret']:.2f} and "
        f"{worst['full']['regret']:.2f} ([all of them](docs/BENCHMARKS.md))."
    )


def headlines(step: dict[str, Any], sweep: dict[str, Any], sets: dict[str, Any]) -> str:
    """One sentence and one plot for each of the three results, as Markdown."""
    s, w = step["figures"], sweep["figures"]
    return "\n\n".join(
        [
            "**A step.** Forward and backward of 32 adapters of ranks 16, 32, 64 on Llama-3.2-1B's shape take "
            f"{s['lora_tax_bs1']:.0%} longer\nthan the frozen base alone at batch 1 ({step['device']}). "
            f"PEFT, one adapter after another, takes {s['x_sequential_bs1']:.0f} times as long as Motet's\nwhole step, under "
            f"torch.compile {s['x_sequential_compiled_bs1']:.0f} times.",
            "![One pass over 32 adapters](docs/step.svg)",
            f"**A search.** 60 configurations take {w['minutes_ours']:.1f} minutes, with kernels compiled. PEFT (eager), one "
            f"after another, would train for {w['hours_sequential']:.1f} hours,\n{w['x_sequential']:.0f} times as long; "
            f"Motet's own steps as CUDA graphs, one job after another, for {60 * w['hours_solo_graphed']:.1f} minutes, "
            f"{w['x_solo_graphed']:.1f} times as long ({sweep['device']}, random weights).",
            "![A search of 60 configurations](docs/search.svg)",
            early_exit(sets),
            "![Samples saved by early exit](docs/early_exit.svg)",
        ]
    )


def replaced(page: str, texts: dict[str, str]) -> str:
    """The page with its generated texts replaced. Raises ValueError unless both markers of a text occur exactly once."""
    for name, text in texts.items():
        begin, end = (f"<!-- made by benchmarks.readme_figures: {name} {edge} -->" for edge in ("begin", "end"))
        between = re.escape(begin) + ".*?" + re.escape(end)
        block = f"{begin}\n\n{text}\n\n{end}"
        page, count = re.subn(between, lambda _, block=block: block, page, flags=re.S)
        if count != 1:
            raise ValueError(f"the page must hold {begin} and {end} once")
    return page


def read(file: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / file).read_text())
    return result


def made() -> dict[Path, str]:
    """Every generated page and plot, with its expected text."""
    docs, step, sweep, sets = ROOT / "docs", read(STEP), read(SWEEP), read(QUALITY)
    tables = {
        "step": f"![One pass over 32 adapters](step.svg)\n\n{table(step)}",
        "rivals": rivals(read(RIVALS)),
        "search": search(sweep),
        "quality": quality.table(sets, QUALITY),
        "company": company(read(COMPANY)),
        "parallel": several_devices(read(PARALLEL)),
        "dashboard": dashboard(read(WEB)),
    }
    measured, planned, readme = docs / "BENCHMARKS.md", docs / "SCHEDULING.md", ROOT / "README.md"
    return {
        docs / "step.svg": plot(step),
        docs / "search.svg": search_plot(sweep),
        docs / "early_exit.svg": quality_plot(sets),
        measured: replaced(measured.read_text(), tables),
        planned: replaced(planned.read_text(), {"scheduling": scheduling(read(SCHEDULER)), "sharing": sharing(read(SHARING))}),
        readme: replaced(readme.read_text(), {"headlines": headlines(step, sweep, sets)}),
    }


def main() -> None:
    for path, text in made().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
