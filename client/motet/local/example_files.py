"""Where the repository's examples lie, and the base model among them. The package itself carries none of it."""

from pathlib import Path

from motet.api.client import Client
from motet.api.errors import MotetError
from motet.api.resources import Model

BASE_NAME = "example-7m"


def folder() -> Path:
    """The examples of the clone that this package runs from, or of the one around the working folder."""
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (root / "examples" / "spec.yaml").is_file():
            return root / "examples"
    raise MotetError("the examples are part of the repository, not of the package: run this in a clone of Motet")


def register_base(client: Client) -> Model:
    """Allow the example base. Again is fine: a folder that moved since is taken from where it is now."""
    return client.admin.register_model(BASE_NAME, folder() / "base-model")
