"""The part of the hub that is written to: repositories, branches, uploads by Git LFS, commits, as huggingface.co answers them.

A repository that was made here has `trees` in its hub.json: by commit, each path with its oid, size and whether it is LFS.
Bytes are FOLDER/lfs/<sha256> and FOLDER/blobs/<git id>. Further faults: {"part_bytes": larger files go in parts of so many},
{"put_cdn": origin of uploads}, {"refuse": {regex of method and path: [status, headers, body, how often]}}, {"slow_put": seconds
a block}, {"cut_answers": regex of paths whose request is done, but not answered}, {"public": what is created is public},
{"late": [regex of paths that are answered late, seconds]}.
"""

import base64
import hashlib
import json
import os
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from tests.http_server import read_body

CHANGING = threading.RLock()
TOKENS = ("hf_test_token", "hf_reads_only")
EXTENSIONS = (".safetensors", ".bin")
NAME = r"[\w.-]+/[\w.-]+"
REPO = re.compile(r"[A-Za-z0-9]+(?:[-_.][A-Za-z0-9]+)*")


class Writable(BaseHTTPRequestHandler):
    folder: Path
    faults: dict[str, Any]
    refused: dict[str, int]

    def say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        raise NotImplementedError

    def begin(self) -> bool:
        """Read the faults and log the request; True where a fault has answered it."""
        raise NotImplementedError

    def do_PUT(self) -> None:
        if not self.begin():
            self._put(unquote(urlsplit(self.path).path))

    def do_POST(self) -> None:
        if self.begin():
            return
        path, body = unquote(urlsplit(self.path).path), read_body(self)
        routes = {
            "/api/repos/create": self._create,
            "/api/validate-yaml": self._validate,
            "/lfs/verify": self._verify,
            rf"/({NAME})\.git/info/lfs/objects/batch": self._batch,
            r"/lfs/complete/(\w+)": self._complete,
            rf"/api/models/({NAME})/preupload/(.+)": self._preupload,
            rf"/api/models/({NAME})/commit/(.+)": self._commit,
            rf"/api/models/({NAME})/branch/(.+)": self._branch,
        }
        for pattern, route in routes.items():
            if found := re.fullmatch(pattern, path):
                needs_token = not path.startswith("/lfs/complete")
                if needs_token and self._token() not in TOKENS:
                    return self._fail(401, "Invalid username or password.")
                if self._token() == TOKENS[1] and re.search("batch|/commit/|/branch/|create$", path):
                    return self._fail(403, "You don't have the rights to write here.")
                return route(body, *found.groups())  # type: ignore[operator]
        return self._fail(404, "no such route")

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _fail(self, status: int, why: str, code: str | None = None) -> None:
        self.say(status, json.dumps({"error": why}).encode(), {"X-Error-Code": code} if code else {})

    def _done(self, said: Any, status: int = 200) -> None:
        if (late := self.faults.get("late")) and re.search(late[0], self.path):
            time.sleep(late[1])
        if (cut := self.faults.get("cut_answers")) and re.search(cut, self.path):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.say(status, json.dumps(said).encode(), {"Content-Type": "application/json"})

    def held(self, name: str) -> dict[str, Any] | None:
        """hub.json of a repository that was made here."""
        said = self.folder / name / "hub.json"
        found = json.loads(said.read_text()) if said.is_file() else {}
        return found if "trees" in found else None

    def _keep(self, name: str, held: dict[str, Any]) -> None:
        target = self.folder / name / "hub.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(f".{threading.get_ident()}")
        draft.write_text(json.dumps(held))
        draft.rename(target)

    def _create(self, body: bytes) -> None:
        said = json.loads(body)
        name = f"{said['organization']}/{said['name']}"
        if not REPO.fullmatch(said["name"]) or said["organization"] != "org":
            return self._fail(403, f"You don't have the rights to create a model under the namespace {said['organization']}.")
        private = said.get("private", said.get("visibility") == "private") and not self.faults.get("public")
        with CHANGING:
            if (self.folder / name).exists():
                return self._fail(409, "You already created this model repo")
            first = hashlib.sha1(name.encode()).hexdigest()
            log = {first: {"parent": None, "title": "initial commit", "message": ""}}
            self._keep(name, {"commits": {"main": first}, "license": "", "private": private, "trees": {first: {}}, "log": log})
        self._done({"url": f"http://{self.headers['Host']}/{name}", "name": name})

    def _validate(self, body: bytes) -> None:
        wrong = wrong_card(json.loads(body)["content"])
        self._done({"errors": [{"message": wrong}] if wrong else [], "warnings": []}, 400 if wrong else 200)

    def _preupload(self, body: bytes, name: str, revision: str) -> None:
        held = self.held(name)
        if held is None:
            return self._fail(404, "Repository not found", "RepoNotFound")
        if revision not in held["commits"]:
            return self._fail(404, "Invalid rev id", "RevisionNotFound")
        tree, answers = held["trees"][held["commits"][revision]], []
        for file in json.loads(body)["files"]:
            sample = base64.b64decode(file["sample"])
            assert len(sample) == min(512, file["size"])
            large = file["path"].endswith(EXTENSIONS) or file["size"] > 10_000_000 or b"\0" in sample
            there = tree.get(file["path"], {}).get("oid")
            ignored = file["path"] in held.get("ignored", ())
            mode = "lfs" if large else "regular"
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": ignored, "oid": there})
        self._done({"files": answers})

    def _batch(self, body: bytes, name: str) -> None:
        said = json.loads(body)
        assert (said["operation"], said["hash_algo"]) == ("upload", "sha256")
        here = f"http://{self.headers['Host']}"
        there, objects = self.faults.get("put_cdn", here), []
        for one in said["objects"]:
            answer = dict(one)
            if not (self.folder / "lfs" / one["oid"]).exists():
                part = self.faults.get("part_bytes")
                verify = {"href": f"{here}/lfs/verify", "header": {}}
                upload: dict[str, Any] = {"href": f"{there}/lfs/put/{one['oid']}?X-Amz-Signature=secret", "header": {}}
                if part and one["size"] > part:
                    count = -(-one["size"] // part)
                    urls = {f"{n:05d}": f"{there}/lfs/part/{one['oid']}/{n}?X-Amz-Signature=s" for n in range(1, count + 1)}
                    upload = {"href": f"{here}/lfs/complete/{one['oid']}", "header": {"chunk_size": str(part), **urls}}
                answer["actions"] = {"upload": upload, "verify": verify}
            objects.append(answer)
        self._done({"transfer": "basic", "objects": objects})

    def _put(self, path: str) -> None:
        found = re.fullmatch(r"/lfs/(put|part)/(\w+)(?:/(\d+))?", path)
        size = int(self.headers["Content-Length"])
        if found is None or "Authorization" in self.headers or "X-Amz-Signature" not in self.path:
            return self.say(400, b"only one auth mechanism is allowed")
        target = self.folder / "incoming" / f"{found[2]}.{found[3] or 'whole'}"
        target.parent.mkdir(exist_ok=True)
        draft = target.with_suffix(f".{threading.get_ident()}")
        digest, left = hashlib.sha256(), size
        with draft.open("wb") as out:
            while left and (block := self.rfile.read(min(self.faults.get("block", 2**20), left))):
                left -= len(block)
                digest.update(block)
                out.write(block)
                time.sleep(self.faults.get("slow_put", 0))
        if left:
            return draft.unlink()
        draft.rename(target)
        if found[1] == "put":
            if digest.hexdigest() != found[2]:
                return self.say(400, b"XAmzContentSHA256Mismatch")
            (self.folder / "lfs").mkdir(exist_ok=True)
            target.rename(self.folder / "lfs" / found[2])
        self.say(200, b"", {"ETag": f'"{digest.hexdigest()[:32]}"'})

    def _complete(self, body: bytes, oid: str) -> None:
        said = json.loads(body)
        whole = self.folder / "incoming" / f"{oid}.{threading.get_ident()}.joined"
        with whole.open("wb") as out:
            for number, part in enumerate(said["parts"], start=1):
                content = (self.folder / "incoming" / f"{oid}.{number}").read_bytes()
                assert (part["partNumber"], part["etag"]) == (number, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
                out.write(content)
        if hashlib.sha256(whole.read_bytes()).hexdigest() != said["oid"] or said["oid"] != oid:
            return self._fail(400, "the parts are another file")
        (self.folder / "lfs").mkdir(exist_ok=True)
        whole.rename(self.folder / "lfs" / oid)
        self._done({"success": True})

    def _verify(self, body: bytes) -> None:
        said = json.loads(body)
        held = self.folder / "lfs" / said["oid"]
        there = held.exists() and held.stat().st_size == said["size"]
        self._done({}, 200 if there else 404)

    def _branch(self, body: bytes, name: str, branch: str) -> None:
        with CHANGING:
            held = self.held(name)
            if held is None or branch in held["commits"]:
                return self._fail(404 if held is None else 409, "Reference exists already")
            held["commits"][branch] = held["commits"][json.loads(body or b"{}").get("startingPoint", "main")]
            self._keep(name, held)
        self._done({})

    def _commit(self, body: bytes, name: str, revision: str) -> None:
        assert self.headers["Content-Type"] == "application/x-ndjson"
        header, *operations = [json.loads(line) for line in body.splitlines()]
        with CHANGING:
            held = self.held(name)
            if held is None or revision not in held["commits"]:
                return self._fail(404, "Invalid rev id", "RevisionNotFound")
            head = held["commits"][revision]
            if header["value"].get("parentCommit", head) != head:
                return self._fail(412, "A commit has happened since. Please refresh and try again.")
            tree = dict(held["trees"][head])
            for one in operations:
                value = one["value"]
                if one["key"] == "lfsFile":
                    if not (self.folder / "lfs" / value["oid"]).exists():
                        return self._fail(400, f"LFS pointer of {value['path']} points to a file that is not there")
                    tree[value["path"]] = {"oid": value["oid"], "size": value["size"], "lfs": True}
                    continue
                content = base64.b64decode(value["content"])
                if value["path"] == "README.md" and (wrong := wrong_card(content.decode())):
                    return self._fail(400, wrong)
                oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
                (self.folder / "blobs").mkdir(exist_ok=True)
                (self.folder / "blobs" / oid).write_bytes(content)
                tree[value["path"]] = {"oid": oid, "size": len(content), "lfs": False}
            commit = hashlib.sha1(os.urandom(20)).hexdigest()
            held["trees"][commit], held["commits"][revision] = tree, commit
            said = header["value"]
            held["log"][commit] = {"parent": head, "title": said["summary"], "message": said["description"]}
            self._keep(name, held)
        url = f"http://{self.headers['Host']}/{name}/commit/{commit}"
        self._done({"success": True, "commitOid": commit, "commitUrl": url})

    def tree(self, name: str, revision: str) -> None:
        held = self.held(name)
        if held is None:
            return self._fail(404, "Repository not found", "RepoNotFound")
        files = held["trees"][held["commits"].get(revision, revision)]
        self._done(
            [
                {"type": "file", "path": path, "size": one["size"], "oid": one["oid"][:40]}
                | ({"lfs": {"oid": one["oid"], "size": one["size"], "pointerSize": 134}} if one["lfs"] else {})
                for path, one in files.items()
            ]
        )

    def commits(self, name: str, revision: str) -> None:
        """Newest first, two to a page."""
        held = self.held(name)
        if held is None or revision not in held["commits"]:
            return self._fail(404, "Invalid rev id", "RevisionNotFound")
        at, listed = held["commits"][revision], []
        while at is not None:
            one = held["log"][at]
            listed.append({"id": at, "title": one["title"], "message": one["message"], "authors": [], "date": "2026-01-01"})
            at = one["parent"]
        first = int(dict(pair.split("=") for pair in urlsplit(self.path).query.split("&") if pair).get("p", 0)) * 2
        onward = f'<{self.path.partition("?")[0]}?p={first // 2 + 1}>; rel="next"'
        headers = {"Link": onward} if first + 2 < len(listed) else {}
        self.say(200, json.dumps(listed[first : first + 2]).encode(), headers)


def wrong_card(text: str) -> str | None:
    """What the hub finds wrong with a README's front matter."""
    if not text.startswith("---\n"):
        return None
    said = yaml.safe_load(text[4:].partition("\n---\n")[0])
    base = said.get("base_model")
    named = [] if base is None else base if isinstance(base, list) else [base]
    wrong = [one for one in named if not re.fullmatch(NAME, str(one))]
    return f'"base_model" with value "{wrong[0]}" is not valid. Use a model id from https://hf.co/models.' if wrong else None
