"""Notices that this machine is about to be taken away, as clouds give of spot machines: a thread looks for one every 5 s.

A source is a file that appears, or a URL: 404, an empty answer or FALSE is no notice, any other answer of 200 is one. Whatever
else comes is logged once, and looked for again.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from contract.wording.field_mistakes import shown

log = logging.getLogger(__name__)

_SECONDS = 5.0  # between two looks: the shortest notice is 30 s
_TIMEOUT = 3.0


class Unclear(Exception):
    """The source says neither that there is a notice nor that there is none."""


@dataclass(frozen=True)
class FileSource:
    path: Path

    def given(self) -> bool:
        """Whether there is a notice. Raises Unclear."""
        try:
            return self.path.exists()
        except OSError as error:  # a folder that may not be entered
            raise Unclear(f"{self.path}: {error.strerror}") from None


@dataclass(frozen=True)
class UrlSource:
    """`token_url`: where a token is put first, as AWS' metadata service wants it (IMDSv2)."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    token_url: str | None = None

    def given(self) -> bool:
        """Whether there is a notice. Raises Unclear."""
        headers = dict(self.headers)
        try:
            with httpx.Client(timeout=_TIMEOUT, trust_env=False) as client:  # a proxy does not reach a machine's metadata
                if self.token_url is not None:
                    life = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
                    headers["X-aws-ec2-metadata-token"] = client.put(self.token_url, headers=life).raise_for_status().text
                answer = client.get(self.url, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unclear(f"{shown(self.url)}: {error or type(error).__name__}") from None
        if answer.status_code == 404:
            return False
        if answer.status_code != 200:
            raise Unclear(f"{shown(self.url)} answers {answer.status_code}")
        return answer.text.strip().upper() not in ("", "FALSE")


_METADATA = "http://169.254.169.254/latest"
CLOUDS = {
    "aws": UrlSource(f"{_METADATA}/meta-data/spot/instance-action", token_url=f"{_METADATA}/api/token"),
    "gcp": UrlSource(
        "http://metadata.google.internal/computeMetadata/v1/instance/preempted", headers=(("Metadata-Flavor", "Google"),)
    ),
}


def source_of(named: str) -> FileSource | UrlSource:
    """The source that MOTET_PREEMPTION_NOTICE names: aws, gcp, file:///path or a URL."""
    if named in CLOUDS:
        return CLOUDS[named]
    return FileSource(Path(named.removeprefix("file://"))) if named.startswith("file://") else UrlSource(named)


class PreemptionNotice:
    """Whether a notice was given. Calls `on_notice` once, from its thread. Without a source there is never one."""

    def __init__(self, named: str | None, on_notice: Callable[[], None]) -> None:
        self._given = threading.Event()
        if named is not None:
            look = source_of(named).given
            threading.Thread(target=self._watch, args=(look, on_notice), name="preemption notice", daemon=True).start()

    @property
    def given(self) -> bool:
        return self._given.is_set()

    def _watch(self, look: Callable[[], bool], on_notice: Callable[[], None]) -> None:
        unclear, pause = False, threading.Event()
        while True:
            try:
                found, unclear = look(), False
            except Unclear as error:
                if not unclear:
                    log.warning("whether this machine is about to be taken away is not known: %s", error)
                found, unclear = False, True
            if found:
                self._given.set()
                on_notice()
                return
            pause.wait(_SECONDS)
