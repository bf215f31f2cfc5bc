"""Liveness of a program without a port: its main loop touches a file, whose age a probe of Kubernetes reads."""

from service.settings import Settings


def show_alive(settings: Settings) -> None:
    """Touch MOTET_LIVENESS_FILE, if it is set. Raises OSError: a program that cannot do so is better started again, too."""
    if settings.liveness_file is not None:
        settings.liveness_file.touch()
