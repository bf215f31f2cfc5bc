"""The early-exit table of docs/BENCHMARKS.md, made from the result file of `python -m benchmarks.quality report`. Measures
nothing."""

from collections import Counter
from typing import Any

from contract.early_exit_policy import EarlyExitPolicy

OURS = EarlyExitPolicy().policy  # the default policy, whose figures are the headline


def table(result: dict[str, Any], file: str) -> str:
    """One line per pair of base and set, as Markdown: what the default policy saves, and how its winner does on unseen rows."""
    f, earlier = result["figures"], Counter(row["commit"] for row in result["rows"] if row["commit"] != result["commit"])
    others = "".join(f"; {sweeps} of the {f['sweeps']:.0f} sweeps at {commit}" for commit, sweeps in earlier.items())
    lines = [
        "60 configurations a pair of base and set (two bases of 7 and 36 million parameters), at product defaults\n"
        f"(`{OURS}`), trained in full and once more live, on one {result['device']}\n"
        f"(commit {result['commit']}, {result['date'][:10]}{others}).\n"
        "Regret: the live winner's loss on rows that neither training nor selection saw, over that of the best of full\n"
        "training's adapters there, means of weights among them; 1 is none. Plain: the same over the best of full training's\n"
        "weights of a single step. Random, ASHA, Hyperband, TPE: their winner's loss there over ours, at equal cost.\n",
        "| base, set | chose defaults | samples saved | net of evaluations | regret (95 %) | full training's own | plain "
        "| beats the base | random | ASHA | Hyperband | TPE |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        ours, shown = row["policies"][OURS], row["live"] or row["policies"][OURS]
        low, high = shown["regret_interval"]
        peers = " | ".join(f"{row['peers'][name]['x']:.3f}" for name in ("random", "asha", "hyperband", "tpe"))
        name = f"{row['pair']}{' (DPO)' if row['objective'] == 'dpo' else ''}{', seed 2' if row['seed'] else ''}"
        beats = "none said" if shown["none_said"] else "no" if shown["worse_than_base"] else "yes"
        lines.append(
            f"| {name} | {'no' if row['held'] else 'yes'} | {ours['saved']:.0%} | {ours['saved_net']:.0%} "
            f"| {shown['regret']:.3f} ({low:.3f} to {high:.3f}) | {row['full']['regret']:.3f} | {shown['regret_plain']:.3f} "
            f"| {beats} | {peers} |"
        )
    lines += [
        "",
        f"Regret has a median of {f['regret_median']:.3f}, a mean of {f['regret_mean']:.3f} and a maximum of "
        f"{f['regret_max']:.3f}; full training's own winner {f['regret_full_median']:.3f},\n{f['regret_full_mean']:.3f} and "
        f"{f['regret_full_max']:.3f}. Plain, ours has {f['regret_plain_median']:.3f}, {f['regret_plain_mean']:.3f} and "
        f"{f['regret_plain_max']:.3f}.\nOn the sets that chose no default ours has {f['regret_median_held']:.3f}, "
        f"{f['regret_mean_held']:.3f} and {f['regret_max_held']:.3f}.\n{_redrawn(f)}The cut after warmup saves "
        f"{f['saved_by_underperforming_mean']:.0%} of all samples, overfitting {f['saved_by_overfitting_mean']:.0%}, "
        f"divergence {f['saved_by_diverging_mean']:.0%}. "
        f"Evaluations take {f['evaluation_share_mean']:.0%} of full training's\ntokens, "
        f"at most {f['evaluation_share_max']:.0%}. All figures: `benchmarks/results/{file}`.",
    ]
    return "\n".join(lines)


def _redrawn(f: dict[str, float]) -> str:
    if "redrawn_regret_ours_mean" not in f:
        return ""
    ours, full = (
        f"{f[f'redrawn_regret_{name}_mean']:.3f} (standard error {f[f'redrawn_regret_{name}_mean_se']:.3f})"
        for name in ("ours", "full")
    )
    return f"Replayed on 24 draws of which rows validate and which nobody sees: {ours},\nfull training's own {full}.\n"
