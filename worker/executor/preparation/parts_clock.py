"""How long the parts of a preparation take, for a line in the log and for the trace."""

import time

from worker.boot_clock import boot_now
from worker.executor.placement.placement_phases import PlacementPhases


class PartsClock:
    """Seconds of consecutive parts."""

    def __init__(self, phases: PlacementPhases) -> None:
        self._phases, self._parts = phases, list[tuple[str, float]]()
        self._since, self._since_at = boot_now(), time.time()

    def note(self, part: str) -> None:
        """This part ends now, and the next one begins."""
        now = boot_now()
        self._parts.append((part, now - self._since))
        self._since, self._since_at = now, self._phases.over(f"prepare {part}", self._since_at)

    def __str__(self) -> str:
        whole = sum(seconds for _, seconds in self._parts)
        return f"{whole:.3f} s (" + ", ".join(f"{part} {seconds:.3f}" for part, seconds in self._parts) + ")"
