"""The README's early-exit table, made from the result file of `python -m benchmarks.quality report`. Measures nothing."""

from typing import Any

from contract.task_spec import EarlyExitPolicy

OURS = EarlyExitPolicy().policy  # the default policy, whose figures are the headline


def table(result: dict[str, Any], file: str) -> str:
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
