"""An import whose stored pins are damaged fails with words, and the importer goes on."""

import pytest

from service.files.models import FileImport
from tests.service.files.imports.named import named, seen


@pytest.mark.parametrize("value", [3, [3], {"sha256": 3}, "x"])
def test_pins(tenant, new_tenant, importer, damage, value):
    other = new_tenant()
    damaged, sound = named(tenant, split="train"), named(other, split="train")
    damage(FileImport, "pins", value, FileImport.id == damaged["id"])
    assert importer.work_off_due() == 1
    assert seen(other, sound["id"])["status"] == "ready"
    failed = seen(tenant, damaged["id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "value_unreadable")
    assert "(file_imports.pins) cannot be read" in failed["error"]["detail"]


def test_a_pin_of_a_newer_version_is_left_out(tenant, importer, damage):
    made = named(tenant, split="train")
    damage(FileImport, "pins", {"sha512": "0"}, FileImport.id == made["id"])
    assert importer.work_off_due() == 1
    assert seen(tenant, made["id"])["status"] == "ready"


@pytest.mark.parametrize("value", [3, {"code": 3}, {"code": "x", "detail": "y", "errors": [3]}, "x"])
def test_why_its_last_attempt_failed(tenant, damage, value):
    made = named(tenant, split="train")
    damage(FileImport, "error", value, FileImport.id == made["id"])
    told = seen(tenant, made["id"])
    assert (told["status"], told["error"]["code"]) == ("importing", "unreadable")
    assert "(file_imports.error: " in told["error"]["detail"]
