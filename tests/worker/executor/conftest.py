"""What tests of the executor share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.messages.report_messages import AdapterKept
from tests.worker.fleet import Fleet
from tests.worker.inside import Inside


@pytest.fixture
def trained(fleet: Fleet, placing: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """The files of an adapter that a short task of these parts left."""

    def train(space: dict[str, Any], data: Any = None, **spec: Any) -> Any:
        short = placing(space, data, early_exit={"policy": "none", "eval_every": 4}, training={"epochs": 2}, **spec)
        (reported,) = Inside(fleet, tmp_path / short.placement_id).run(short)
        return reported.of(AdapterKept)[0].manifest.files

    return train
