"""Which regular expressions a metric may use: those of Python's `re` that can be compiled in bounded time and memory, and that
mean the same to the engine that searches with a timeout (the package `regex`). Searches for nothing."""

import re

MOST_PARTS = 10_000  # with every counted repeat written out, as the engine compiles it

_TOKEN = re.compile(r"\\.|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<repeat>\{(\d+)(?:,(\d*))?\}|\{,(\d+)\})|.", re.DOTALL)
_CLASS = re.compile(r"(?:\\.|[^\\])+?\[:")  # within a set
# {e<=1}, {1<=e<=2}, {2i+1d<=4}, {e}; it goes back nowhere, so that it takes linear time
_FUZZY = re.compile(r"\{\s*+(?:\d++\s*+<=?\s*+)?+\d*+\s*+[eids]\s*+(?:<=?\s*+\d++\s*+)?+[},:+]")


def pattern_fault(pattern: str) -> str | None:
    """Why the pattern cannot be used, as the end of a sentence; None where it can."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}"
    # only now: each set has its end, so that the tokens are found in linear time
    if any(token["set"] and _CLASS.match(token[0]) for token in _TOKEN.finditer(pattern)):
        return r"has '[:' within a set, where it names a class of characters; write '\[' for a bracket"
    groups, latest = [0], 0  # parts so far of each open group; of the latest part, which a repeat is of
    for token in _TOKEN.finditer(pattern):
        match token[0]:
            case "*" | "+" | "?" | "|":
                continue
            case "(":
                groups.append(0)
                continue
            case ")":
                latest = groups.pop()
            case "{" if (fuzzy := _FUZZY.match(pattern, token.start())) is not None:
                return rf"has '{fuzzy[0]}', which asks for inexact matches; write '\{{' for a brace"
            case _ if token["repeat"]:
                times = max(1, *(int(number) for number in token.groups()[2:] if number))
                latest, before = latest * times, latest
                groups[-1] -= before
            case _:
                latest = 1
        groups[-1] += latest
        if groups[-1] > MOST_PARTS:
            return f"has more than {MOST_PARTS:,} parts where its repeats are written out; repeat less"
    return None
