"""An import whose stored pins are damaged fails with words, and the importer goes on."""

import json

import pytest
from sqlalchemy import text

from tests.service.files.imports.named import named, seen


@pytest.fixture
def pinned(database):
    def write(id, value):
        with database.begin() as session:
            said = text("UPDATE file_imports SET pins = CAST(:v AS jsonb) WHERE id = :id")
            session.execute(said, {"v": json.dumps(value), "id": id})

    return write


@pytest.mark.parametrize("value", [3, [3], {"sha256": 3}, "x"])
def test_pins(tenant, new_tenant, importer, pinned, value):
    other = new_tenant()
    damaged, sound = named(tenant, split="train"), named(other, split="train")
    pinned(damaged["id"], value)
    assert importer.work_off_due() == 1
    assert seen(other, sound["id"])["status"] == "ready"
    failed = seen(tenant, damaged["id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "value_unreadable")
    assert "(file_imports.pins) cannot be read" in failed["error"]["detail"]


def test_a_pin_of_a_newer_version_is_left_out(tenant, importer, pinned):
    made = named(tenant, split="train")
    pinned(made["id"], {"sha512": "0"})
    assert importer.work_off_due() == 1
    assert seen(tenant, made["id"])["status"] == "ready"
