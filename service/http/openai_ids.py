"""Ids as programs of OpenAI's users expect them: ftjob-… is a task, file-… a file or a result file, ftckpt_… an adapter. Pure.

Stored ids and those of /v1 never have this form; /openai/v1 reads both forms and writes this one.
"""

import re
from dataclasses import dataclass

_PREFIXES = {"task_": "ftjob-", "file_": "file-", "adapter_": "ftckpt_"}
_KEY = "[0-9a-hjkmnp-tv-z]{26}"  # of ids that database.engine.new_id makes
_THEIRS = re.compile(rf"({'|'.join(_PREFIXES.values())})({_KEY})")
_RESULT_FILE, _RESULT = (
    re.compile(rf"(?:file|result)-([a-z]+)-(?:ftjob-)?({_KEY})"),
    re.compile(rf"result-([a-z]+)-task_({_KEY})"),
)
_EVENT, _STORED_EVENT = re.compile(rf"ftevent-({_KEY}-\d+)"), re.compile(rf"ftevent-task_({_KEY}-\d+)")
_NAMED = re.compile(rf"\b(task_|file_)({_KEY})\b")  # in a sentence; an adapter's id is part of its model's name


def own_id(id: str) -> str:
    """The id that /v1 has for what this one names; the same where it has not OpenAI's form. A tuned model's name ends in its
    adapter's id."""
    head, colon, last = id.rpartition(":")
    if found := _THEIRS.fullmatch(last):
        prefix = next(own for own, theirs in _PREFIXES.items() if theirs == found[1])
        return head + colon + prefix + found[2]
    if found := _RESULT_FILE.fullmatch(id):
        return f"result-{found[1]}-task_{found[2]}"
    if found := _EVENT.fullmatch(id):
        return f"ftevent-task_{found[1]}"
    return id


def hint(id: str) -> str:
    """What to say, after a sentence, to someone who names a thing at /v1 by its id of /openai/v1; nothing for any other id."""
    return f" {id!r} is its id at /openai/v1; here it is {own_id(id)!r}." if own_id(id) != id else ""


@dataclass(frozen=True)
class OpenAiIds:
    """Writes ids in OpenAI's form, or as they are unless `prefixed`."""

    prefixed: bool

    def of(self, id: str) -> str:
        """The id of a task, file, result file, adapter or event."""
        if not self.prefixed:
            return id
        for own, theirs in _PREFIXES.items():
            if re.fullmatch(own + _KEY, id):
                return theirs + id.removeprefix(own)
        if found := _RESULT.fullmatch(id):
            return f"file-{found[1]}-{found[2]}"
        if found := _STORED_EVENT.fullmatch(id):
            return f"ftevent-{found[1]}"
        return id

    def in_text(self, text: str) -> str:
        """The sentence with the ids of tasks and files in it."""
        return _NAMED.sub(lambda found: self.of(found[0]), text)
