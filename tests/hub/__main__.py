"""`python -m tests.hub FOLDER`: serves repositories as huggingface.co does, and prints its port. Large files are redirects.

FOLDER/<organisation>/<name>/ holds files and `hub.json`: {"commits": {"main": sha}, "license": …, "gated": …, "private": …}.
A data set is FOLDER/datasets/<organisation>/<name>/, files in folders too; its *.jsonl of over 1 kB are large ones.
FOLDER/plain/ holds files that /plain/<path> sends as any web server, with an ETag: {"etag": text} replaces it.
FOLDER/faults.json, read at each request: {"down": true}, {"seconds": per block, "block": bytes}, {"cut_after": bytes of each
answer}, {"wrong": [paths]}, {"redirect": URL}, {"cdn": origin of large files}, {"no_ranges": true}. FOLDER/requests.log has a
line for each request: path, Range, whether it carried a token, and its method. writable.py is what is written to.
"""

import hashlib
import json
import re
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.http_server import HangUpServer
from tests.hub.writable import TOKENS, Writable

FOLDER = Path(sys.argv[1])
LFS = (".safetensors", ".bin", "tokenizer.json")


class Handler(Writable):
    protocol_version = "HTTP/1.1"
    folder, refused = FOLDER, Counter[str]()

    def begin(self) -> bool:
        self.faults = json.loads((FOLDER / "faults.json").read_text())
        with (FOLDER / "requests.log").open("a") as log:
            token = "token" if "Authorization" in self.headers else "anonymous"
            log.write(f"{self.path} {self.headers.get('Range', '-')} {token} {self.command}\n")
        if self.faults.get("down"):
            self.say(503, b"down")
            return True
        for pattern, (status, headers, body, often) in self.faults.get("refuse", {}).items():
            if re.search(pattern, f"{self.command} {self.path}") and self.refused[f"{status} {pattern}"] < often:
                self.refused[f"{status} {pattern}"] += 1
                self.close_connection = True  # the body is left unread
                self.say(status, body.encode(), {**headers, "Connection": "close"})
                return True
        return False

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.begin():
            return None
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self._info(found[1], found[2] or "main")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commits/(.+)", path):
            return self.commits(*found.groups())
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/(.+)", path):
            return self.tree(*found.groups())
        if found := re.fullmatch(r"/lfs/get/(\w+)", path):
            return self._send(FOLDER / "lfs" / found[1], found[1])
        if found := re.fullmatch(r"/api/(datasets/[^/]+/[^/]+)/revision/(.+)", path):
            return self._info(*found.groups())
        if found := re.fullmatch(r"/plain/(.+)", path):
            return self._plain(FOLDER / "plain" / found[1], found[1])
        if found := re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(*found.groups())
        if found := re.fullmatch(r"/cdn/((?:datasets/)?[^/]+/[^/]+)/(.+)", path):
            return self._send(FOLDER / found[1] / found[2], found[2])
        return self.say(404, b"{}")

    def _repository(self, name: str, revision: str, content: bool) -> dict[str, Any] | None:
        """What hub.json says; None where the request was refused."""
        said = FOLDER / name / "hub.json"
        knows = self._token() in TOKENS
        held = json.loads(said.read_text()) if said.is_file() else {"private": True}
        if held.get("private") and not (knows and said.is_file()):
            self.say(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision not in (*held["commits"], *held["commits"].values()):
            self.say(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif held.get("gated") and content and not knows:
            self.say(401, b"{}", {"X-Error-Code": "GatedRepo"})
        else:
            return held
        return None

    def _info(self, name: str, revision: str) -> None:
        held = self._repository(name, revision, content=False)
        if held is None:
            return
        siblings = [
            {"rfilename": path, "size": one["size"], "blobId": one["oid"][:40]}
            | ({"lfs": {"sha256": one["oid"], "size": one["size"], "pointerSize": 134}} if one["lfs"] else {})
            for path, one in held.get("trees", {}).get(held["commits"].get(revision, revision), {}).items()
        ]
        for path in sorted((FOLDER / name).rglob("*")):
            if path.name.startswith("hub.") or path.is_dir():
                continue
            content = path.read_bytes()
            one: dict[str, Any] = {"rfilename": str(path.relative_to(FOLDER / name)), "size": len(content)}
            if self._is_large(path):
                one["blobId"] = "0" * 40
                one["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            else:
                one["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            siblings.append(one)
        commit = held["commits"].get(revision, revision)
        gated = held.get("gated", False)
        said = {
            "id": name,
            "sha": commit,
            "gated": gated,
            "private": bool(held.get("private")),
            "tags": [f"license:{held['license']}"],
        }
        self.say(200, json.dumps(said | {"siblings": siblings, "downloads": 1, "likes": 0}).encode())

    def _resolve(self, name: str, revision: str, path: str) -> None:
        held = self._repository(name, revision, content=True)
        if held is None:
            return
        if "trees" in held:
            return self._committed(held, held["commits"].get(revision, revision), path)
        if not (FOLDER / name / path).is_file():
            self.say(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif self._is_large(FOLDER / name / path):
            self.say(302, b"", {"Location": self.faults.get("redirect", f"{self.faults.get('cdn', '')}/cdn/{name}/{path}")})
        else:
            self._send(FOLDER / name / path, path)

    def _committed(self, held: dict[str, Any], commit: str, path: str) -> None:
        """A file of a commit that was made here."""
        one = held["trees"][commit].get(path)
        if one is None:
            return self.say(404, b"", {"X-Error-Code": "EntryNotFound"})
        said = {"X-Repo-Commit": commit, "ETag": f'"{one["oid"]}"'}
        if not one["lfs"]:
            return self._send(FOLDER / "blobs" / one["oid"], path, said)
        cdn = f"http://localhost:{server.server_port}"  # another host: redirects within one are followed as renames
        linked = {"X-Linked-Etag": f'"{one["oid"]}"', "X-Linked-Size": str(one["size"])}
        return self.say(302, b"", {**said, **linked, "Location": f"{cdn}/lfs/get/{one['oid']}"})

    @staticmethod
    def _is_large(file: Path) -> bool:
        return file.name.endswith(LFS) or (file.suffix == ".jsonl" and file.stat().st_size > 1000)

    def _plain(self, file: Path, path: str) -> None:
        if "redirect" in self.faults:
            return self.say(302, b"", {"Location": self.faults["redirect"]})
        if not file.is_file():
            return self.say(404, b"")
        self._send(file, path, {"ETag": self.faults.get("etag", f'"{hashlib.sha1(file.read_bytes()).hexdigest()}"')})

    def _send(self, file: Path, path: str, headers: dict[str, str] | None = None) -> None:
        content = file.read_bytes()
        if path in self.faults.get("wrong", ()):
            content = content[:-1] + bytes([content[-1] ^ 1])
        first, last, status = 0, len(content) - 1, 200
        if (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))) and not self.faults.get("no_ranges"):
            first, last, status = int(asked[1]), min(last, int(asked[2] or last)), 206
        if first > last:
            return self.say(416, b"")
        self.send_response(status)
        self.send_header("Content-Length", str(last + 1 - first))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        for name, value in ({**(headers or {}), **self.faults.get("headers", {})}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        size, sent = int(self.faults.get("block", 2**20)), 0
        for at in range(first, last + 1, size):
            block = content[at : min(at + size, last + 1)]
            if (cut := self.faults.get("cut_after")) is not None and sent + len(block) > cut:
                self.wfile.write(block[: cut - sent])
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.wfile.write(block)
            self.wfile.flush()
            sent += len(block)
            time.sleep(self.faults.get("seconds", 0))

    def say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


server = HangUpServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
sys.stdout.write(f"{server.server_port}\n")
sys.stdout.flush()
server.serve_forever()
