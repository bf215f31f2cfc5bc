"""What a daemon is to run, as a desired state and what it knew before add up to it. Pure."""

from collections.abc import Mapping

from contract.messages.placement_messages import AnswersOnly, DesiredState, Leased, MergeWork

Wanted = dict[str, tuple[Leased, float]]  # by id, with the deadline of the first lease, on the boot clock


def wanted_of(state: DesiredState, sent_at: float, before: Mapping[str, tuple[Leased, float]]) -> Wanted:
    """Of a state that was asked for at `sent_at`. What the service cannot describe goes on as it was `before`."""
    told: list[Leased] = [*state.placements, *(state.sessions or []), *(state.merges or [])]
    wanted = {one.placement_id: (one, sent_at + one.lease_seconds) for one in told}
    for kept in state.unchanged:
        if (known := before.get(kept.placement_id)) is not None:
            wanted[kept.placement_id] = known[0].model_copy(update={"leave": kept.leave}), known[1]
    if state.merges is None:
        wanted |= {key: one for key, one in before.items() if isinstance(one[0], MergeWork)}
    if state.sessions is None:
        taken = {index for one, _ in wanted.values() for index in one.device_indexes}
        for key, (one, deadline) in before.items():
            if isinstance(one, AnswersOnly) and taken.isdisjoint(one.device_indexes):
                wanted[key] = one, deadline
    return wanted
