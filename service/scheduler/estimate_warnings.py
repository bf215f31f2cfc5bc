"""Warnings about a task that is estimated: GPUs that would stand idle, a deadline that is missed, rows that seem longer than
max_seq_len."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from contract.task_spec import TaskSpec
from contract.wording.duration_words import duration
from service.dependencies import Dependencies
from service.http.problems import FieldError
from service.scheduler.estimate.task_duration import BYTES_PER_TOKEN
from service.storage.object_store import Storage
from service.tasks.submission.spec_checks import ResolvedRefs, deadline_over

_LISTED = 50  # most rows listed
_LOOKED_AT = 64 * 2**20  # most bytes read of a file


def idle_gpus(spec: TaskSpec) -> Iterator[FieldError]:
    """A warning about GPUs that would get no job: a job is never split over GPUs."""
    jobs = spec.search_space.size
    if spec.gpus > jobs:
        message = (
            f"is {spec.gpus}, but the search space makes jobs for {jobs} and none is split: {spec.gpus - jobs} would stand idle"
        )
        yield FieldError(field="gpus", code="gpus_idle", message=message)
    elif spec.max_gpus is not None and spec.max_gpus > jobs:
        widest = max(width for width in spec.widths if width <= jobs)
        message = f"is {spec.max_gpus}, but the search space makes jobs for {jobs} and none is split: at most {widest} are used"
        yield FieldError(field="max_gpus", code="gpus_idle", message=message)


def missed_deadline(spec: TaskSpec, now: datetime, end: datetime | None) -> Iterator[FieldError]:
    """A warning about a deadline that is over, or lies before the expected end."""
    if spec.deadline is None:
        return
    yield from deadline_over(spec.deadline, now)
    if spec.deadline > now and end is not None and end > spec.deadline:
        after = duration((end - spec.deadline).total_seconds())
        late = f"would be missed: the task is expected to end about {after} after it"
        yield FieldError(field="deadline", code="deadline_missed", message=late)


def long_rows(dependencies: Dependencies, spec: TaskSpec, refs: ResolvedRefs) -> Iterator[FieldError]:
    """Warnings about rows that seem longer than max_seq_len, by their bytes: the service has no tokenizer. Under dpo by those
    of the longer of a row's two sequences."""
    most, pairs = spec.training.max_seq_len, spec.objective.type == "dpo"
    for field, file in (("dataset.file_id", refs.train), ("dataset.validation_file_id", refs.validation)):
        if file is None:
            continue
        key = "long rows", file.sha256, most, pairs
        found = dependencies.estimate_cache.get(
            key,
            lambda file=file: _long_rows(dependencies.storage, file.sha256, most, pairs),  # type: ignore[misc]
        )
        for line, tokens in found.lines:
            message = f"has about {tokens} tokens, training.max_seq_len is {most}; it will be cut"
            yield FieldError(field=field, line=line, code="row_truncated", message=message)
        if found.until is not None:
            message = f"is looked at in its first {_LOOKED_AT // 2**20} MiB alone; longer rows behind this line are not listed"
            yield FieldError(field=field, line=found.until, code="rows_not_looked_at", message=message)


class _LongRows(NamedTuple):
    """Some of a file's rows above a length limit, as (line, approximate tokens); `until` is the last line read, None: all."""

    lines: tuple[tuple[int, int], ...]
    until: int | None


def _long_rows(storage: Storage, sha256: str, most: int, pairs: bool) -> _LongRows:
    found, read = list[tuple[int, int]](), 0
    with storage.open(sha256) as lines:
        for number, line in enumerate(lines, 1):
            read += len(line)
            tokens = round(len(line) / BYTES_PER_TOKEN)
            if tokens > most and pairs:
                tokens = round((len(line) - _shorter_answer(line)) / BYTES_PER_TOKEN)
            if tokens > most:
                found.append((number, tokens))
            if len(found) == _LISTED:
                break
            if read >= _LOOKED_AT:
                return _LongRows(tuple(found), number)
    return _LongRows(tuple(found), None)


def _shorter_answer(line: bytes) -> int:
    """About how many bytes of a preference row are its shorter answer; 0 of another row."""
    row = json.loads(line)
    found = [row[name] for name in ("chosen", "rejected", "preferred_output", "non_preferred_output") if name in row]
    return min((len(json.dumps(answer, ensure_ascii=b"\\u" in line).encode()) for answer in found), default=0)
