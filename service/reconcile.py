"""The reconciler: on its own timer, it finds what a lost hint, a dead node or a crash left behind, and sets it going again."""

from service.settings import Settings


def run(settings: Settings) -> None:
    """Reconcile every `settings.reconcile_seconds` until SIGTERM or SIGINT."""
