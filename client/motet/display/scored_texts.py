"""How the texts of a task's base and adapters were scored, and what they wrote to the same prompts. Knows no service."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from contract.wording.generated_text_words import remarks, shortened
from motet.api.resources import PairwiseWins, TextEvaluation
from motet.display.columns import Column, Columns

_LONGEST = 600  # characters shown of a prompt, a reference and a text


def drawn(found: Sequence[TextEvaluation], samples: int, pairwise: Sequence[PairwiseWins] = ()) -> RenderableType:
    """A line for the base and each adapter; below, how often the winner's texts are better than the base's, and as many prompts
    with what each of them wrote."""
    metrics = sorted({name for one in found for name in one.scores})
    columns = (
        Column("of"),
        *(Column(name, right=True) for name in metrics),
        Column("prompts", need=2, right=True),
        Column("step", need=3, right=True),
        Column("notes", need=1, folds=True),
    )
    rows = [
        (
            whose(one),
            *(f"{one.scores[name]:.3f}" if name in one.scores else "" for name in metrics),
            str(one.prompts),
            str(one.step) if one.step is not None else "",
            remarks(one.error, one.notes, one.pending),
        )
        for one in found
    ]
    prompts = min(samples, max((len(one.samples) for one in found), default=0))
    wins = [Text(f"the winner against the base: {one.sentence}") for one in pairwise]
    return Group(Columns(columns, rows), *wins, *(_prompt(found, place) for place in range(prompts)))


def whose(one: TextEvaluation) -> str:
    """Who wrote the texts."""
    if one.index is None:
        return "the base"
    return f"job {one.index}" if one.milestone is None else f"job {one.index} at step {one.step}"


def _prompt(found: Sequence[TextEvaluation], place: int) -> RenderableType:
    """One prompt, its row's answer, and every text."""
    asked = [(one, one.samples[place]) for one in found if place < len(one.samples)]
    first = asked[0][1]
    lines = [
        Text(f"\nprompt {place + 1}: ", "bold").append(shortened(first.prompt, _LONGEST, keep_end=True), "not bold"),
        Text("reference: ", "dim").append(shortened(first.reference, _LONGEST), "not dim"),
    ]
    for one, sample in asked:
        scores = ", ".join(f"{name} {score:.3f}" for name, score in sorted(sample.scores.items()))
        lines.append(Text(f"{whose(one)} ({scores}): ", "dim").append(shortened(sample.text, _LONGEST), "not dim"))
    return Group(*lines)
