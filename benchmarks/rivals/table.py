"""The table of docs/BENCHMARKS.md on rivals, from the result file. Measures nothing."""

import math
from typing import Any

_MODES = ("eager", "graphed")
_SHOWN = (("Motet", "ours"), ("the frozen base alone", "base alone"), ("LoRAFusion",) * 2, ("mLoRA",) * 2, ("Unsloth",) * 2)


def rivals(result: dict[str, Any]) -> str:
    """Milliseconds of every contestant in every cell, launched from Python / as one captured graph, as Markdown."""
    rows, f = result["rows"], result["figures"]
    worst = max(result["gate"]["agreement"]["worst_error"].values())
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    lines = [
        "One decoder layer of Llama-3.2-1B's shape, forward and backward in milliseconds, launched from Python / as one\n"
        f"captured graph, on one {result['device']} (commit {result['commit']}, {result['date'][:10]}). All agree with a\n"
        f"layer in float32 to {worst:.1%} (output, dX, dA, dB). A rival's linear maps are its own, as shipped; norms,\n"
        "attention and residual sums are ours for all.\n",
        "| | " + " | ".join(cells) + " |",
        "|---|" + "---|" * len(cells),
    ]
    for title, name in _SHOWN:
        lines.append(f"| {title} | " + " | ".join(_times(rows, cell, name) for cell in cells) + " |")
    lines += [
        "",
        f"So in every cell, graphed too, LoRAFusion takes at least {_floor(f['x_lorafusion_min'])} times as long as ours, "
        f"mLoRA {_floor(f['x_mlora_min'])} times, Unsloth {_floor(f['x_unsloth_min'])} times\n(aim: 1). Graphs are kind to "
        "those that launch much. How each is run (the longest `note` of its rows):\n",
        *(f"- {name}: {_note(rows, name)}" for _, name in _SHOWN[2:]),
    ]
    return "\n".join(lines)


def _times(rows: list[dict[str, Any]], cell: str, name: str) -> str:
    mine = (row for row in rows if row["cell"] == cell and row["what"].endswith(f", {name}"))
    found = {row["mode"]: row["ms"] for row in mine if "ms" in row}
    return " / ".join(f"{found[mode]:.1f}" if mode in found else "not run" for mode in _MODES)


def _floor(ratio: float) -> str:
    return f"{math.floor(100 * ratio) / 100:.2f}"


def _note(rows: list[dict[str, Any]], name: str) -> str:
    return max((str(row["note"]) for row in rows if row["what"].endswith(f", {name}")), key=len)
