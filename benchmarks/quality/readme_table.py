"""The README's early-exit table, made from the result file of `python -m benchmarks.quality report`. Measures nothing.

Result files of before rows were kept unseen have no regret; `_seen_table` shows them until one is measured anew.
"""

from typing import Any

from contract.early_exit_policy import EarlyExitPolicy

OURS = EarlyExitPolicy().policy  # the default policy, whose figures are the headline


def table(result: dict[str, Any], file: str) -> str:
    """One line per pair of base and set, as Markdown: what the default policy saves, and how its winner does on unseen rows."""
    if "regret_mean" not in result["figures"]:
        return _seen_table(result, file)
    f = result["figures"]
    lines = [
        f"60 configurations a pair of base and set (two bases of 7 and 36 million parameters), at product defaults (`{OURS}`), "
        f"trained in full and once more live,\non one {result['device']} (commit {result['commit']}, {result['date'][:10]}). "
        "Regret: the live winner's loss on rows that neither training nor selection saw, over that of the best\nof full "
        "training's adapters there; 1 is none. Random, ASHA, Hyperband: their winner's loss there over ours, at equal cost.\n",
        "| base, set | chose defaults | samples saved | net of evaluations | regret (95 %) | full training's own "
        "| beats the base | random | ASHA | Hyperband |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        ours, shown = row["policies"][OURS], row["live"] or row["policies"][OURS]
        low, high = shown["regret_interval"]
        peers = " | ".join(f"{row['peers'][name]['x']:.3f}" for name in ("random", "asha", "hyperband"))
        name = f"{row['pair']}{' (DPO)' if row['objective'] == 'dpo' else ''}{', seed 2' if row['seed'] else ''}"
        beats = "none said" if shown["none_said"] else "no" if shown["worse_than_base"] else "yes"
        lines.append(
            f"| {name} | {'no' if row['held'] else 'yes'} | {ours['saved']:.0%} | {ours['saved_net']:.0%} "
            f"| {shown['regret']:.3f} ({low:.3f} to {high:.3f}) | {row['full']['regret']:.3f} | {beats} | {peers} |"
        )
    lines += [
        "",
        f"Regret is {f['regret_mean']:.3f} on average and at most {f['regret_max']:.3f}; on the sets that chose no default "
        f"{f.get('regret_mean_held', float('nan')):.3f} and {f.get('regret_max_held', float('nan')):.3f}.\nFull training's own "
        f"winner has {f['regret_full_mean']:.3f}. The cut after warmup saves "
        f"{f['saved_by_underperforming_mean']:.0%} of all samples, overfitting {f['saved_by_overfitting_mean']:.0%},\n"
        f"divergence {f['saved_by_diverging_mean']:.0%}. Evaluations take {f['evaluation_share_mean']:.0%} of full training's "
        f"tokens, at most {f['evaluation_share_max']:.0%}. All figures: `benchmarks/results/{file}`.",
    ]
    return "\n".join(lines)


def _seen_table(result: dict[str, Any], file: str) -> str:
    """One line per pair of base and set, as Markdown: the default policy's savings and cost."""
    lines = [
        "60 configurations a set (learning rates, ranks and batch sizes of ALTO's appendix A.4) over a base of 7M parameters,\n"
        f"each trained in full once and once more under `{OURS}`, the default, on one {result['device']}\n"
        f"(commit {result['commit']}, {result['date'][:10]}). The ratio is the best validation loss found over the best of "
        "full training; 1 is no loss.\n",
        "| set | samples saved | ratio | ratio, live | ASHA's ratio at equal tokens | Unsloth's defaults | Tinker's |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        ours, live, told = row["policies"][OURS], row["live"][OURS], row["recommended"]
        lines.append(
            f"| {row['pair']}{' (DPO)' if row['objective'] == 'dpo' else ''} | {ours['saved']:.0%} | {ours['ratio']:.3f} "
            f"| {live['ratio']:.3f} | {row['asha']['ratio']:.3f} | {told['unsloth']:.2f} | {told['tinker']:.2f} |"
        )
    f = result["figures"]
    least, most = (end(result["rows"], key=_net) for end in (min, max))
    lines += [
        "",
        f"The true best was among the quarter kept after warmup on {f['best_in_top_quartile']:.0%} of the sets. ALTO's own "
        f"rules, to the letter, save\n{f['alto_saved_mean']:.0%} at a mean ratio of {f['alto_ratio_mean']:.3f}. Evaluations "
        f"cost tokens too, and these sets are small: net of\nthem {f['samples_saved_net_mean']:.0%} of all tokens are saved on "
        f"average, from {_net(least):.0%} ({least['pair']}, validated on {least['policy_rows']} rows) to {_net(most):.0%} "
        f"({most['pair']}, on\n{most['policy_rows']}). All figures and curves: `benchmarks/results/{file}`.",
    ]
    return "\n".join(lines)


def _net(row: dict[str, Any]) -> float:
    """The default policy's savings on the pair, in tokens, with evaluations counted."""
    net: float = row["policies"][OURS]["saved_net"]
    return net
