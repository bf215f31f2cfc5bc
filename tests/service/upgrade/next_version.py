"""The version after this one, made from this tree: an optional field in the spec, a default that has changed, fields on the
wire, an additive migration. Everything is found by the names of classes, so that files may move.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[3]
NOT_COPIED = (
    ".venv",
    ".git",
    "tests",
    "benchmarks",
    "docs",
    "examples",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
    "*.egg-info",
)
SPEC_FIELD = "of_next_version"
WIRE_MESSAGES = ("NodeRegistration", "HeartbeatAnswer", "DesiredState", "Report")
MIGRATION = '''"""What the next version adds: a column and an index on it, built concurrently."""

import sqlalchemy as sa
from alembic import op

revision = "next_version"
down_revision = "{head}"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("of_next_version", sa.Integer()))
    with op.get_context().autocommit_block():
        op.create_index("ix_tasks_of_next_version", "tasks", ["of_next_version"], postgresql_concurrently=True)


def downgrade() -> None:
    op.drop_index("ix_tasks_of_next_version", "tasks")
    op.drop_column("tasks", "of_next_version")
'''


def make_next_version(folder: Path) -> str:
    """The next version's tree in `folder`; its number."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
    _add_field(folder, "TaskSpec", f'{SPEC_FIELD}: int | None = Field(default=None, ge=0, description="Of the next version.")')
    _add_field(folder, "Training", 'smoothing_of_next_version: float = Field(default=0.0, ge=0, description="As before at 0.")')
    for message in WIRE_MESSAGES:
        _add_field(folder, message, 'of_next_version: str = "said by the next version"')
    _add_field(folder, "Task", "of_next_version: Mapped[int | None]", base="Base", after=r"    __tablename__ = \"tasks\"\n")
    _edit(folder, r"(    max_grad_norm: Annotated\[[^\n]* = Field\(\s*default=)1\.0", r"\g<1>2.0")
    versions = next(path.parent for path in folder.rglob("*.py") if re.search(r"^down_revision\b", path.read_text(), re.M))
    (versions / "next_version.py").write_text(MIGRATION.format(head=_head(versions)))
    return _raise_version(folder)


_DOCSTRING = r"    \"\"\"(?:[^\"]|\"(?!\"\"))*\"\"\"\n"


def _head(versions: Path) -> str:
    texts = [path.read_text() for path in versions.glob("*.py")]
    made = {match for text in texts for match in re.findall(r"^revision\b[^=]*= \"(.+)\"", text, re.M)}
    followed = {match for text in texts for match in re.findall(r"^down_revision\b[^=]*= \"(.+)\"", text, re.M)}
    (head,) = made - followed
    return head


def _add_field(folder: Path, name: str, field: str, base: str | None = None, after: str = _DOCSTRING) -> None:
    """Before the others of the class of this name, of these bases."""
    bases = base or r"(?:Strict|Message)"
    _edit(folder, rf"^(class {name}\({bases}\):\n(?:{after})?)", rf"\g<1>    {field}\n", below="client")


def _edit(folder: Path, pattern: str, replacement: str, below: str = "") -> None:
    """In the one place of the tree where the pattern is, the client's own classes left out."""
    found = 0
    for path in folder.rglob("*.py"):
        if below and path.is_relative_to(folder / below):
            continue
        text, count = re.subn(pattern, replacement, path.read_text(), flags=re.M)
        if count:
            path.write_text(text)
            found += count
    assert found == 1, f"{pattern} is in {found} places, not in one: mend the synthetic next version"


def _raise_version(folder: Path) -> str:
    new = ""

    def raised(match: re.Match[str]) -> str:
        nonlocal new
        new = f"{match[1]}.{int(match[2]) + 1}.0"
        return f'VERSION = "{new}"'

    for path in folder.rglob("*.py"):
        text, count = re.subn(r'^VERSION = "(\d+)\.(\d+)\.\d+"', raised, path.read_text(), flags=re.M)
        if count:
            path.write_text(text)
    assert new, "no module says VERSION"
    return new
