"""Finds what a source names, before anything is downloaded: size, hash, commit, licence, and whether it may be read.

Downloads a description and the first bytes. Buckets (s3://) are read with the request's keys, or as anybody: never with the
service's own, which would open any tenant's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from huggingface_hub import DatasetInfo
from huggingface_hub.hf_api import RepoSibling

from service.files.dataset_intake import FileTooLarge
from service.files.imports.hub_files import check_choice, chosen_file, license_of
from service.files.imports.s3_object import SCHEME, S3Object, bucket_and_key
from service.files.models import Pins
from service.files.source_formats import refuse_format
from service.http.outbound import Failed, Outbound, Refused, StreamedResponse
from service.http.problems import Invalid, Unavailable, invalid_field, shown
from service.hub.hub_client import Hub, check_revision

DATASETS = "hf://datasets/"
_DATASET = re.compile(r"hf://datasets/([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})")
_FIRST_BYTES = 512
BY_URL = ("https://",)
DESCRIPTION_SECONDS = 300.0  # life of the signature under which an object is described
IDENTITY = {"User-Agent": "motet", "Accept-Encoding": "identity"}  # what is stored is hashed as it was sent


class SourceUnavailable(Unavailable):
    code, title = "source_unavailable", "The source does not answer"


@dataclass(frozen=True)
class Found:
    """A file at its source. `shown` is the source without a query, `bytes` None where it tells no length."""

    url: str
    shown: str
    name: str
    bytes: int | None
    pins: Pins
    path: str | None = None
    revision: str | None = None
    commit: str | None = None
    license: str | None = None
    gated: bool = False
    token: str = field(default="", repr=False)
    trusted: str = ""  # the hub's origin, whose address an operator chose
    bucket: S3Object | None = field(default=None, repr=False)  # whose `url` is signed anew for each attempt


@dataclass(frozen=True)
class Asked:
    """A request to import, as it came. `token` is for the hub; `own` the service's, which an admin's import uses. `bucket`: how
    an s3:// source is read, with its bucket and key left out."""

    source: str
    revision: str = "main"
    path: str | None = None
    split: str | None = None
    token: str = field(default="", repr=False)
    own: str = field(default="", repr=False)
    bucket: S3Object | None = field(default=None, repr=False)


def find(asked: Asked, hub: Hub, outbound: Outbound, most: int) -> Found:
    """The file of this source, of at most `most` bytes. Raises Invalid, FileTooLarge, Unavailable."""
    if asked.source.startswith("hf://"):
        found = _on_hub(asked, hub)
    elif asked.source.startswith(BY_URL):
        found = _by_url(asked, outbound)
    elif asked.source.startswith(SCHEME):
        found = _in_bucket(asked, outbound)
    else:
        raise _wrong(
            "source_not_taken",
            f"must be hf://datasets/organisation/name, https://host/path or s3://bucket/key, not {shown(asked.source)!r}; a "
            "file of your own is uploaded as multipart/form-data",
        )
    if found.bytes is not None and found.bytes > most:
        raise FileTooLarge(
            f"{found.name} has {found.bytes} bytes at its source, and a file may have at most {most}; split it.", limit=most
        )
    return found


def check_encoding(got: StreamedResponse) -> None:
    """Raise Invalid if the bytes are not the file's own."""
    said = got.headers.get("content-encoding", "identity").strip().lower()
    if said not in ("", "identity"):
        raise _wrong(
            "encoded", f"the host sends it with Content-Encoding: {shown(said)}; name a URL that sends the file as it is"
        )
    if "content-length" not in got.headers and "chunked" not in got.headers.get("transfer-encoding", "").lower():
        raise _wrong("no_length", "the host tells no length, so a cut transfer would look like a whole one; name another URL")


def strong_etag(got: StreamedResponse) -> str | None:
    said = got.headers.get("etag", "").strip()
    return said if re.fullmatch(r'"[\x21\x23-\x7e]{1,200}"', said) else None


def _on_hub(asked: Asked, hub: Hub) -> Found:
    matched = _DATASET.fullmatch(asked.source)
    if matched is None or ".." in asked.source or "--" in asked.source:
        if asked.source.startswith(DATASETS):
            raise _wrong(
                "not_a_repository",
                f"must be hf://datasets/organisation/name, not {shown(asked.source)!r}; its file is named in `path` or `split`",
            )
        raise _wrong("not_a_dataset", "data sets of the hub are hf://datasets/organisation/name; models go to POST /v1/models")
    check_revision(asked.revision)
    check_choice(asked.path, asked.split)
    name, token = matched[1], asked.token or asked.own
    reader = hub.dataset(name, token)
    info: DatasetInfo = reader.dataset_info(asked.revision)
    commit = info.sha or ""
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise _wrong("not_a_repository", f"the hub names no commit of {name} at {shown(asked.revision)!r}")
    one = chosen_file(name, {one.rfilename: one for one in info.siblings or ()}, asked.path, asked.split)
    if not one.size:
        raise _wrong("empty_file", f"{one.rfilename} of {name} is empty")
    refuse_format(one.rfilename, b"")
    refuse_format(one.rfilename, reader.content(commit, one.rfilename, min(one.size, _FIRST_BYTES)))  # and may it be read
    return Found(
        url=reader.url(commit, one.rfilename),
        shown=asked.source,
        name=one.rfilename.rpartition("/")[2],
        bytes=one.size,
        pins=_pins(one),
        path=one.rfilename,
        revision=asked.revision,
        commit=commit,
        license=license_of(info),
        gated=bool(info.gated),
        token=token,
        trusted=hub.endpoint,
    )


def _pins(one: RepoSibling) -> Pins:
    if one.lfs is not None and re.fullmatch(r"[0-9a-f]{64}", one.lfs.sha256):
        return Pins(sha256=one.lfs.sha256)
    return Pins(blob_id=one.blob_id)


def _by_url(asked: Asked, outbound: Outbound) -> Found:
    _refuse_hub_fields(asked)
    try:
        parts = urlsplit(asked.source)
    except ValueError:  # its text would tell a part of a password
        raise _wrong("not_a_url", "is not a URL: its host cannot be read; write https://host/path") from None
    if "@" in parts.netloc:
        raise _wrong("credentials_in_url", "may not hold a user name or password; name a presigned URL")
    shown_ = asked.source.partition("?")[0]
    return _described(asked.source, shown_, parts.path, outbound)


def _in_bucket(asked: Asked, outbound: Outbound) -> Found:
    """The object as it is now, pinned by its ETag."""
    _refuse_hub_fields(asked)
    bucket, key = bucket_and_key(asked.source)
    object_ = replace(asked.bucket or S3Object("", ""), bucket=bucket, key=key)
    found = _described(object_.url(DESCRIPTION_SECONDS), object_.shown, f"/{key}", outbound)
    return replace(found, revision=object_.version or None, bucket=object_)


def _refuse_hub_fields(asked: Asked) -> None:
    for field_, said in (("path", asked.path), ("split", asked.split), ("token", asked.token)):
        if said:
            raise invalid_field(
                field_, "only_for_the_hub", "goes with hf://datasets/…; other sources name their file by themselves"
            )


def _described(url: str, shown_: str, path: str, outbound: Outbound) -> Found:
    """What one GET of the URL tells, of which the first bytes alone are read."""
    refuse_format(path, b"")
    try:
        with outbound.stream(url, IDENTITY) as got:
            if got.status != 200:
                raise status_refusal(got.status, urlsplit(got.url).netloc, got.headers)
            check_encoding(got)
            first = next((block for block in got.blocks if block), b"")
    except Refused as error:
        raise _wrong("source_not_called", str(error)) from None
    except Failed as error:
        raise SourceUnavailable(f"{urlsplit(url).netloc} does not answer: {error}.", retry_after=10) from None
    refuse_format(path, first)
    length = got.headers.get("content-length", "")
    if length == "0" or not first:
        raise _wrong("empty_file", "is empty")
    return Found(url, shown_, _last(shown_), int(length) if length.isdigit() else None, Pins(etag=strong_etag(got)))


def status_refusal(status: int, host: str, headers: Mapping[str, str]) -> Invalid | SourceUnavailable:
    """What another status than 200 or 206 means: a refusal, or something that may pass. `headers`: of the answer."""
    if region := headers.get("x-amz-bucket-region", "") if status in (301, 307, 400) else "":
        return _wrong(
            "source_refused", f"{host} answers {status}: the bucket is in another region; send `region`: {shown(region)}"
        )
    if status in (408, 425, 429) or status >= 500:
        return SourceUnavailable(f"{host} answers {status}; try again later.", retry_after=10)
    known = {401: "needs a credential", 403: "does not give it", 404: "has no such file", 410: "has no such file any more"}
    way_out = "check the URL, and of a bucket the keys and what they may read" if status in (401, 403) else "check the URL"
    return _wrong("source_refused", f"{host} answers {status}: it {known.get(status, 'does not give it')}; {way_out}")


def _last(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2] or "data.jsonl"


def _wrong(code: str, message: str) -> Invalid:
    return invalid_field("source", code, message)
