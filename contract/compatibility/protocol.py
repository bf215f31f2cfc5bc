"""Which versions of the wire's protocol may speak with each other: neighbours. Knows no message."""


def refusal(ours: int, theirs: int, they: str) -> str | None:
    """Why a peer of protocol `theirs` cannot be spoken with, in words; None where it can. `they` names it in the sentence."""
    if abs(ours - theirs) <= 1:
        return None
    spoken = f"{max(1, ours - 1)} to {ours + 1}"
    older, newer = (they, "this side") if theirs < ours else ("this side", they)
    return f"{they} speaks protocol {theirs}, and {spoken} are understood here: bring {older} to a version closer to {newer}'s"
