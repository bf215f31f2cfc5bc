"""Tells a node which of its cached files tenants have deleted, so that the node erases them too. Changes nothing.

The node sends all that it caches, so a deletion that it missed while offline is found at its next call.
"""

from sqlalchemy import func, or_, select, tuple_
from sqlalchemy.orm import Session

from contract.messages.cached_file_list import CachedFiles
from contract.states import TASK_TERMINAL
from service.files.models import File
from service.tasks.models import Task, reads_file


def unwanted(session: Session, kept: CachedFiles) -> CachedFiles:
    """The cached files to erase: they match no live (undeleted, unexpired) file of the tenant, and no open task reads them."""
    pairs = [(file.tenant_id, file.sha256) for file in kept.files]
    there = File.deleted_at.is_(None) & or_(File.expires_at.is_(None), File.expires_at > func.clock_timestamp())
    reads = reads_file(File.id)
    needed = select(Task.id).where(reads, Task.status.not_in(list(TASK_TERMINAL))).exists()
    of_these = tuple_(File.tenant_id, File.sha256).in_(pairs)
    wanted = {
        (tenant_id, sha256)
        for tenant_id, sha256 in session.execute(select(File.tenant_id, File.sha256).where(of_these, or_(there, needed)))
    }
    return CachedFiles(files=[file for file in kept.files if (file.tenant_id, file.sha256) not in wanted])
