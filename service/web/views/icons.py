"""States as shapes: a small SVG for each, so that no state is told by colour alone."""

from markupsafe import Markup

_SHAPES = {
    "validating": '<circle cx="8" cy="8" r="5" fill="none" stroke-dasharray="3 2"/>',
    "queued": '<circle cx="8" cy="8" r="5" fill="none"/>',
    "running": '<path class="fill" d="M4.5 3l8 5-8 5z"/>',
    "paused": '<path class="fill" d="M4 3h3v10H4zM9 3h3v10H9z"/>',
    "succeeded": '<path fill="none" d="M3 8.5l3.5 3.5L13 4.5"/>',
    "failed": '<path fill="none" d="M4 4l8 8M12 4l-8 8"/>',
    "cancelled": '<path fill="none" d="M3 8h10"/>',
    "pending": '<circle cx="8" cy="8" r="5" fill="none"/>',
    "warmup": '<path class="fill" d="M8 3a5 5 0 0 1 0 10z"/><circle cx="8" cy="8" r="5" fill="none"/>',
    "parked": '<rect x="4" y="4" width="8" height="8" fill="none"/>',
    "training": '<path class="fill" d="M4.5 3l8 5-8 5z"/>',
    "completed": '<path fill="none" d="M3 8.5l3.5 3.5L13 4.5"/>',
    "exited": '<path fill="none" d="M3 3v10M13 8H6M9 5L6 8l3 3"/>',
    "ready": '<circle class="fill" cx="8" cy="8" r="4"/>',
    "lost": '<path fill="none" d="M4 4l8 8M12 4l-8 8"/>',
    "stopped": '<path fill="none" d="M3 8h10"/>',
    "stopping": '<path class="fill" d="M4 3h3v10H4zM9 3h3v10H9z"/>',
    "quarantined": '<path fill="none" d="M8 2l6 11H2zM8 6v3M8 11v.5"/>',
    "resting": '<path class="fill" d="M4 3h3v10H4zM9 3h3v10H9z"/>',
    "not_applying": '<path fill="none" d="M8 2l6 11H2zM8 6v3M8 11v.5"/>',
    "unreadable": '<path fill="none" d="M8 2l6 11H2zM8 6v3M8 11v.5"/>',
    "disk_full": '<path fill="none" d="M8 2l6 11H2zM8 6v3M8 11v.5"/>',
    "drained": '<path fill="none" d="M3 8h10"/>',
    "delivered": '<path fill="none" d="M3 8.5l3.5 3.5L13 4.5"/>',
}


def icon(state: str) -> Markup:
    """The shape of a state; the word beside it says the same."""
    shape = Markup(_SHAPES.get(state, _SHAPES["queued"]))
    return Markup('<svg class="icon s-{}" viewBox="0 0 16 16" aria-hidden="true">{}</svg>').format(state, shape)
