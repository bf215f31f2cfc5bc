"""Protocol compatibility: adjacent versions of the wire protocol may talk to each other. Knows no message."""

PROTOCOL = 1  # the version spoken; a peer of PROTOCOL - 1 still works


def refusal(ours: int, theirs: int, they: str) -> str | None:
    """Why this side refuses a peer of protocol `theirs`, as a sentence; None if it does not. `they` names the peer in the
    sentence."""
    if abs(ours - theirs) <= 1:
        return None
    spoken = f"{max(1, ours - 1)} to {ours + 1}"
    older, newer = (they, "this side") if theirs < ours else ("this side", they)
    return f"{they} speaks protocol {theirs}, and {spoken} are understood here: bring {older} to a version closer to {newer}'s"
