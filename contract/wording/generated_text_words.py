"""What is said beside the scores of generated texts, and how much of a long text is shown. Pure."""

from collections.abc import Mapping, Sequence


def remarks(error: str | None, notes: Sequence[str], pending: Mapping[str, int]) -> str:
    """error: why there are no scores. notes: what is left out of them, or counts as 0. pending: by metric, how many texts an
    endpoint has still to grade. Empty where there is nothing to say."""
    waits = [
        f"{name}: {count} {'text is' if count == 1 else 'texts are'} still to be graded"
        for name, count in sorted(pending.items())
    ]
    return "; ".join([*([error] if error is not None else []), *notes, *waits])


def shortened(text: str, most: int, keep_end: bool = False) -> str:
    """The text, or where it has more than `most` characters its beginning, or its end, with an ellipsis where it is cut."""
    if len(text) <= most:
        return text
    return f"…{text[-most:]}" if keep_end else f"{text[:most]}…"
