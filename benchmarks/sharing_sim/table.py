"""The table of docs/SCHEDULING.md on sharing, from the result file. Measures nothing."""

from typing import Any

_SHOWN = (
    ("ours", "Motet"), ("joining", "joins alone"), ("preempting", "preemption alone"),
    ("tlora", "tLoRA's pairing"), ("plora", "PLoRA's packs"), ("mlora", "mLoRA's FIFO"),
)  # fmt: skip


def sharing(result: dict[str, Any]) -> str:
    """What each policy saves beside exclusive placement, by trace and load, as Markdown."""
    rows = [row for row in result["rows"] if row["part"] == "reported" and row["bases"] == 4]
    lines = [
        "Saved beside exclusive placement that preempts nobody, %: weighted completion / p99 slowdown (negative: worse),\n"
        f"4 bases, means over three windows that chose nothing. {result['device']} shared with other work, commit "
        f"{result['commit'][:7]}.\n",
        "| trace, load | if nobody waited | idealised | " + " | ".join(title for _, title in _SHOWN) + " |",
        "|---|---|---|" + "---|" * len(_SHOWN),
    ]
    for trace, load in dict.fromkeys((row["trace"], row["load"]) for row in rows):
        mine = {row["policy"]: row for row in rows if (row["trace"], row["load"]) == (trace, load)}
        cells = [_saved(mine.get(policy)) for policy, _ in _SHOWN]
        bounds = [f"{100 * mine['ours'][key]:.0f}" for key in ("most_that_can_be_saved", "idealised_saved")]
        lines.append(f"| {trace}, {load} | " + " | ".join([*bounds, *cells]) + " |")
    return "\n".join(lines)


def _saved(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not run"
    return f"{100 * row['wct_saved']:+.1f} / {100 * row['p99_saved']:+.0f}"
