"""One attempt of a push: what the hub lacks is sent, then committed at once. Every step may be repeated after a crash.

Large files that the hub has by their sha256 are not sent again. A commit names its parent, which is noted before: the hub makes
one of two commits onto the same parent, and the message of the one that it made names the push. So whoever takes up a push
that may have been committed finds it.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from contract.messages.adapter_manifest import AdapterFile
from service.http.problems import Problem
from service.hub.hub_client import HubUnavailable
from service.hub.hub_refusals import BranchMoved, HubRefused, NoRepository, NoRevision
from service.hub.hub_writer import SAMPLE, HubWriter, LargeFile, OfferedFile, UploadMode
from service.hub.lfs_upload import LfsUpload
from service.hub_pushes.push_claims import ClaimedPush, PushClaims
from service.messaging.progress_notes import ProgressNotes
from service.storage.object_store import BLOCK, ObjectMissing, Storage

log = logging.getLogger(__name__)

MAIN = "main"
_MOVES = 5  # commits of others in a row that come between
_MOST_SMALL = 32 * 2**20  # bytes of all files within a commit, which are held in memory


class ObjectGone(Problem):
    code, title = "object_lost", "Storage does not hold what the database refers to"


@dataclass
class _Missing:
    """What the branch lacks: small files with their content, and large ones."""

    small: dict[str, bytes] = field(default_factory=dict)
    large: list[AdapterFile] = field(default_factory=list)


class PushRun:
    """`wait` sleeps, and may raise to end the attempt."""

    def __init__(
        self, claims: PushClaims, claimed: ClaimedPush, writer: HubWriter, storage: Storage, wait: Callable[[float], None]
    ) -> None:
        self._claims, self._claimed, self._writer, self._storage = claims, claimed, writer, storage
        self._notes = ProgressNotes(wait, partial(claims.renew, claimed))
        self._upload = LfsUpload(writer, claimed.branch, self._notes.pause)

    def run(self) -> str:
        """The commit that has all files. Raises Lost, Unavailable or another OSError where another attempt may succeed, Problem
        where none would, and what `wait` raises."""
        claimed = self._claimed
        parent = self._branch()
        for _ in range(_MOVES):
            if claimed.committing and (made := self._writer.commit_with(claimed.branch, claimed.id, claimed.parent)):
                return made
            missing = self._missing()
            if not (missing.small or missing.large):
                return self._writer.head(claimed.branch)
            for file in missing.large:
                self._send(file)
            self._claims.note_commit(claimed, parent)
            large = [LargeFile(file.path, file.sha256, file.bytes) for file in missing.large]
            try:
                return self._writer.commit(
                    claimed.branch, parent, claimed.message, f"Pushed by Motet as {claimed.id}.", missing.small, large
                )
            except BranchMoved:
                log.info("push %s: the branch has another commit than %s by now", claimed.id, parent)
                parent = self._writer.head(claimed.branch)
        raise HubUnavailable(f"Others commit to {claimed.repository} all the time; it is tried again.", retry_after=10)

    def _branch(self) -> str | None:
        """The newest commit of the branch; repository and branch are made where they are missing. None: it has none yet."""
        writer, branch = self._writer, self._claimed.branch
        try:
            private = writer.is_private()
        except NoRepository:
            writer.create(self._claimed.private)
            private = self._made_private()
        if self._claimed.private and not private:
            why = f"{self._claimed.repository} is public on the hub, and the push was to be private"
            raise HubRefused("repository_public", f'{why}; push it with "private": false, or to another repository.')
        self._notes.note()
        try:
            return writer.head(branch)
        except NoRevision:
            if branch == MAIN:
                return None
        writer.create_branch(branch)
        return writer.head(branch)

    def _made_private(self) -> bool:
        try:
            return self._writer.is_private()
        except NoRepository:
            what = f"{self._claimed.repository} exists on the hub, and the token may not see it"
            raise HubRefused("hub_forbidden", f"{what}; make one that may write there.") from None

    def _missing(self) -> _Missing:
        """What the branch lacks of the files."""
        files, found = self._claimed.files, _Missing()
        modes = self._writer.modes(self._claimed.branch, [OfferedFile(f.path, f.bytes, self._first(f)) for f in files])
        self._notes.note()
        there = 0
        for file in files:
            mode = modes[file.path]
            content = None if mode.lfs else self._small(file, found)
            if _is_there(file, mode, content):
                there += file.bytes
            elif content is None:
                found.large.append(file)
            else:
                found.small[file.path] = content
        self._claimed.sent = there
        return found

    def _small(self, file: AdapterFile, found: _Missing) -> bytes:
        """The content of a file that is sent within the commit."""
        if file.bytes + sum(map(len, found.small.values())) > _MOST_SMALL:
            why = f"the hub wants {file.path} within the commit, whose files may have {_MOST_SMALL} bytes"
            raise HubRefused("hub_commit_too_large", f"{why}; track it by LFS in .gitattributes of {self._claimed.repository}.")
        return b"".join(self._blocks(file, 0, file.bytes, noted=False))

    def _send(self, file: AdapterFile) -> None:
        """Bring one large file to the hub. `sent` counts from what was there before, however often it is tried."""
        claimed, before = self._claimed, self._claimed.sent

        def blocks(first: int, count: int) -> Iterator[bytes]:
            claimed.sent = before + first
            return self._blocks(file, first, count, noted=True)

        self._notes.note()
        sent = self._upload.send(file.sha256, file.bytes, blocks)
        claimed.sent = before + file.bytes
        (self._claims.note_stored if sent else self._claims.renew)(claimed)
        log.info("push %s: %s %s", claimed.id, file.path, "is sent" if sent else "was there")

    def _first(self, file: AdapterFile) -> bytes:
        return b"".join(self._blocks(file, 0, min(SAMPLE, file.bytes), noted=False))

    def _blocks(self, file: AdapterFile, first: int, count: int, noted: bool) -> Iterator[bytes]:
        """These bytes of a stored file: all of them, or it raises ObjectGone."""
        gone = ObjectGone(f"The bytes of {file.path} are missing from storage; please report this.")
        try:
            source = self._storage.open(file.sha256)
        except ObjectMissing:
            raise gone from None
        with source:
            source.seek(first)
            while count > 0 and (block := source.read(min(BLOCK, count))):
                yield block
                count -= len(block)
                if noted:
                    self._claimed.sent += len(block)
                    self._notes.moved()
        if count > 0:
            raise gone


def _is_there(file: AdapterFile, mode: UploadMode, content: bytes | None) -> bool:
    """Whether the branch has the file as it is: the hub names it by its sha256, or git's id of its content."""
    if content is None:
        return mode.oid == file.sha256
    return mode.oid == hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
