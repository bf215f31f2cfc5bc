"""`motet files`: data sets, listed, uploaded, and imported from where they are."""

import os
from pathlib import Path
from typing import Annotated

import typer

from motet.api.client import Client
from motet.api.errors import FileNotReady
from motet.api.operations.files import BucketAccess
from motet.api.resources import FileImport, FoundFile
from motet.commands.common import Json, Limit, Output, first
from motet.display.tables.task_tables import files_table
from motet.specs.spec_file import SpecError

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
files = typer.Typer()


@files.callback(invoke_without_command=True)
def list_files(
    context: typer.Context,
    upload: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, readable=True, help="Upload this file first; may be repeated."),
    ] = None,
    unused: Annotated[bool, typer.Option("--unused", help="Only those that no task names.")] = False,
    imports: Annotated[bool, typer.Option("--imports", help="Those that are imported, and those that could not be.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="With --unused: delete them.")] = False,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """List files, the newest first; `motet files add` imports one, `motet delete FILE` deletes one."""
    if context.invoked_subcommand is not None:
        return
    if delete and not unused:
        raise SpecError("--delete deletes the files that --unused lists; `motet delete FILE` deletes a single one")
    output = Output(json)
    if imports:
        with Client() as client:
            coming = first(limit, (one for status in ("importing", "failed") for one in client.files.imports(status)))
        output.give(coming, lambda: "\n".join(map(_said, coming)) if coming else "nothing is imported")
        return
    with Client() as client:
        for path in upload or []:
            with output.console_output.doing(f"uploading {path.name}"):
                client.files.upload(path)
        found = first(limit, client.files.list(unused or None))
        for file in found if delete else ():
            client.files.delete(file.id)
    output.give(found, lambda: files_table(found) if found else f"no {'unused ' if unused else ''}files")
    if delete and found:
        output.say(f"{len(found)} deleted")


@files.command()
def add(
    source: Annotated[str, typer.Argument(help="hf://datasets/organisation/name, https://host/rows.jsonl, or s3://bucket/key")],
    revision: Annotated[str | None, typer.Option(help="Of the hub: a branch, tag or commit; main, if left out.")] = None,
    path: Annotated[str | None, typer.Option(help="Of the hub: the file in the repository.")] = None,
    split: Annotated[str | None, typer.Option(help="Of the hub, instead of --path: the split whose one file is meant.")] = None,
    name: Annotated[str | None, typer.Option(help="The file's name here; left out, its own.")] = None,
    with_token: Annotated[
        bool, typer.Option("--with-token", help="Send the variable HF_TOKEN: for gated and private data sets.")
    ] = False,
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="Of a bucket: send AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN.")
    ] = False,
    region: Annotated[str | None, typer.Option(help="Of a bucket; us-east-1, if left out.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="Of a bucket: an S3-compatible server's URL; AWS, if left out.")] = None,
    version_id: Annotated[str | None, typer.Option(help="Of a bucket: the object's version; the newest, if left out.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell size, licence and commit, and import nothing.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until it is ready.")] = True,
    json: Json = False,
) -> None:
    """Import a data set by its source. The service fetches it, pinned by commit or ETag, and checks its rows as an upload's."""
    token = os.environ.get("HF_TOKEN") if with_token else None
    if with_token and not token:
        raise SpecError("--with-token sends the variable HF_TOKEN, which is not set")
    bucket = _bucket(with_keys, region, endpoint, version_id)
    output = Output(json)
    with Client() as client:
        if dry_run:
            seen = client.files.inspect(source, revision, path, split, token, name, bucket)
            output.give(seen, lambda: _told(seen))
            return
        found = client.files.add(source, revision, path, split, token, name, bucket)
        if wait:
            with output.console_output.doing(f"importing {found.name} ({found.id})"):
                *_, found = client.files.follow(found.id)
    ended = found
    output.give(ended, lambda: _said(ended))
    if found.status == "failed":
        raise FileNotReady(f"{found.id} could not be imported; `motet delete {found.id}` forgets it")


def _bucket(with_keys: bool, region: str | None, endpoint: str | None, version_id: str | None) -> BucketAccess:
    """Raises SpecError where keys are wanted and not set."""
    keys = [os.environ.get(name) for name in _KEYS] if with_keys else [None, None, None]
    if with_keys and not (keys[0] and keys[1]):
        raise SpecError(f"--with-keys sends the variables {_KEYS[0]} and {_KEYS[1]}, which are not both set")
    return BucketAccess(keys[0], keys[1], keys[2] or None, region, endpoint, version_id)


def _told(found: FoundFile) -> str:
    at = f" at commit {found.commit[:12]}" if found.commit else ""
    size = f"{found.bytes:,} bytes" if found.bytes is not None else "the source tells no size"
    terms = f"; licence {found.license or 'not told'}{', gated' if found.gated else ''}" if found.commit else ""
    return f"{found.source}{f', {found.path}' if found.path else ''}{at}: {size}{terms}"


def _said(found: FileImport) -> str:
    if found.status == "ready":
        return f"{found.id} ({found.name}): {found.rows:,} rows, {found.bytes:,} bytes"
    of_all = f" of {found.total_bytes:,}" if found.total_bytes is not None else ""
    why = f"; {found.error.detail}" if found.error is not None else ""
    return f"{found.id} ({found.name}) is {found.status}: {found.received_bytes:,}{of_all} bytes{why}"
