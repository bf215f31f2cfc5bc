"""Puts an upload's parts together to a data set, which is checked as it is read; memory holds one block and one line."""

import hashlib
from collections.abc import Iterable

from service.files.dataset_intake import CheckedDataSet, Intake, IntakeLimits
from service.files.models import ChunkedUploadPart
from service.http.problems import Conflict, invalid_field
from service.storage.object_store import BLOCK, ObjectMissing, Storage


class PartLost(Conflict):
    code, title = "part_lost", "A part is not in storage"


def assemble(storage: Storage, limits: IntakeLimits, parts: Iterable[ChunkedUploadPart], md5: str | None) -> CheckedDataSet:
    """The stored data set of these parts' bytes, in this order. `md5`: of all bytes, in hex, where it is to be compared. Raises
    FileInvalid, FileTooLarge, PartLost, and Invalid where the md5 differs."""
    intake, digest = Intake(storage.receive(), limits), hashlib.md5(usedforsecurity=False)
    try:
        for part in parts:
            try:
                source = storage.open(part.sha256)
            except ObjectMissing:
                raise PartLost(f"The bytes of {part.id} are not in storage any more; add that part again.") from None
            with source:
                while block := source.read(BLOCK):
                    digest.update(block)
                    intake.feed(block)
        if md5 is not None and md5.lower() != digest.hexdigest():
            raise invalid_field("md5", "md5_mismatch", f"the parts' bytes have the md5 {digest.hexdigest()}")
        return intake.finish()
    finally:
        intake.abandon()
