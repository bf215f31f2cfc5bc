"""Chooses the file of a data set's repository that a path or a split names. Values only."""

import re
from collections.abc import Mapping
from urllib.parse import unquote

from huggingface_hub import DatasetInfo
from huggingface_hub.hf_api import RepoSibling

from service.files.source_formats import readable, refuse_format
from service.http.problems import Invalid, invalid_field, shown

_NAMED = 10  # files that a refusal lists


def check_choice(path: str | None, split: str | None) -> None:
    """Raise Invalid for what names no file in any repository, so that no hub is asked about it."""
    if path is not None and split is not None:
        raise invalid_field("split", "path_and_split", "goes without `path`: either names the file")
    # decoded as well: where a file of such a name is, depends on who decodes it
    parts = re.split(r"[/\\]", unquote(path)) + path.split("/") if path is not None else ()
    if path is not None and any(part in ("", ".", "..") for part in parts):
        way_out = "write it as the hub lists it, such as data/train.jsonl"
        raise invalid_field("path", "not_a_path", f"{shown(path)!r} is no path of a file in a repository; {way_out}")
    if path is not None:
        refuse_format(path, b"")


def chosen_file(name: str, held: Mapping[str, RepoSibling], path: str | None, split: str | None) -> RepoSibling:
    """The one file that is meant, of a choice that `check_choice` passed. Raises Invalid where none is, or several are."""
    if path is not None:
        if path not in held:
            raise invalid_field(
                "path", "file_unknown", f"{name} holds no {shown(path)!r} at this revision; it holds {_some(held)}"
            )
        return held[path]
    files = [found for found in held if readable(found)]
    if split is not None:
        files = [found for found in files if _is_of(found, split)]
        if not files:
            raise _of_other_format(name, held, split)
    if len(files) == 1:
        return held[files[0]]
    if not files:
        raise _of_other_format(name, held, None)
    which = f"split {split} of {name} is {len(files)} files" if split is not None else f"{name} holds {len(files)} files"
    raise invalid_field("path", "several_files", f"{which}; name one of them as `path`: {_some(files)}")


def license_of(info: DatasetInfo) -> str | None:
    """As the data set's card or a tag says, at most 128 characters."""
    said = info.card_data.get("license") if info.card_data is not None else None
    tagged = next((tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")), None)
    found = said if isinstance(said, str) else tagged
    return None if found is None else "".join(letter for letter in found if letter.isprintable())[:128]


def _is_of(path: str, split: str) -> bool:
    """Whether the file's name or a folder of it is the split's: train.jsonl, data/train-00000-of-00002.jsonl, train/a.json."""
    *folders, last = path.split("/")
    return split in folders or re.split(r"[-_.]", last)[0] == split or last.partition(".")[0] == split


def _of_other_format(name: str, held: Mapping[str, RepoSibling], split: str | None) -> Invalid:
    of_split = [found for found in held if split is None or _is_of(found, split)]
    for found in of_split:
        try:
            refuse_format(found, b"")
        except Invalid as refusal:
            return refusal
    what = f"no split {shown(split)!r}" if split is not None else "no *.jsonl or *.json file"
    return invalid_field("split" if split else "source", "file_unknown", f"{name} holds {what}; it holds {_some(held)}")


def _some(paths: Mapping[str, RepoSibling] | list[str]) -> str:
    found = sorted(path for path in paths if path != ".gitattributes")
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(shown(path) for path in found[:_NAMED]) + more if found else "nothing"
