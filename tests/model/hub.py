"""The Hub's HTTP layout on this machine: what huggingface_hub asks of it to list, fetch and commit files of models.

Large files are sent by LFS, in one part each: fastflow leaves the other ways to the library.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = 1000  # bytes from which a file is sent and listed as a large one; the Hub's own limit is 10 MB


class Hub:
    """Repositories: name -> the commits, oldest first, each the files by name."""

    def __init__(self) -> None:
        self.large: dict[str, bytes] = {}  # sha256 of a file -> its bytes
        self.commits: dict[str, list[dict[str, bytes]]] = {}
        self.asked: list[str] = []  # methods and paths
        self.spoilt: dict[str, bytes] = {}  # name of a file -> what is sent in its place

    def add(self, repository: str, files: dict[str, bytes]) -> str:
        """One more commit; returns its name."""
        self.commits.setdefault(repository, []).append(files)
        return self.name(repository, len(self.commits[repository]) - 1)

    def name(self, repository: str, number: int) -> str:
        return sha1(f"{repository} {number}".encode()).hexdigest()

    def find(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.commits.get(repository, [])
        names = [self.name(repository, i) for i in range(len(commits))]
        at = len(names) - 1 if revision == "main" else names.index(revision) if revision in names else -1
        return (names[at], commits[at]) if at >= 0 else None


def listed(name: str, data: bytes) -> dict:
    entry = {"rfilename": name, "size": len(data), "blobId": sha1(b"blob %d\0" % len(data) + data).hexdigest()}
    if len(data) >= LARGE:
        entry |= {"blobId": "0" * 40}
        entry["lfs"] = {"sha256": sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def answer(self, body: bytes | dict, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def missing(self, code: str) -> None:
        self.answer(b"", 404, X_Error_Code=code, X_Error_Message=f"{code} here")

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[:2] != ["api", "models"] and parts[2:3] != ["resolve"]:
            return self.missing("EntryNotFound")
        self.hub.asked.append(f"{self.command} {'/'.join(parts)}")
        if parts[:2] == ["api", "models"]:
            repository, revision = "/".join(parts[2:4]), parts[5] if parts[4:5] == ["revision"] else "main"
        else:
            repository, revision = "/".join(parts[:2]), parts[3]
        if repository not in self.hub.commits:
            return self.missing("RepoNotFound")
        found = self.hub.find(repository, revision)
        if found is None:
            if self.hub.commits[repository]:
                return self.missing("RevisionNotFound")
            found = "0" * 40, {}
        commit, files = found
        if parts[0] == "api":
            siblings = [listed(name, data) for name, data in files.items()]
            return self.answer({"id": repository, "modelId": repository, "sha": commit, "siblings": siblings})
        name = "/".join(parts[4:])
        if name not in files:
            return self.missing("EntryNotFound")
        entry, data = listed(name, files[name]), self.hub.spoilt.get(name, files[name])
        etag = entry["lfs"]["sha256"] if "lfs" in entry else entry["blobId"]
        return self.answer(data, ETag=f'"{etag}"', X_Repo_Commit=commit, X_Linked_Etag=f'"{etag}"')

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path = urlsplit(self.path).path.strip("/")
        self.hub.asked.append(f"POST {path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer hf_test":
            return self.answer({"error": "no token that may write"}, 401)
        if path == "api/repos/create":
            asked = json.loads(body)
            repository = f"{asked['organization']}/{asked['name']}"
            if repository in self.hub.commits:
                return self.answer({"url": f"http://{self.headers['Host']}/{repository}", "error": "exists"}, 409)
            self.hub.commits[repository] = []
            return self.answer({"url": f"http://{self.headers['Host']}/{repository}", "name": repository})
        if path == "api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path.endswith(".git/info/lfs/objects/batch"):
            return self.answer({"objects": [self.to_send(each) for each in json.loads(body)["objects"]]})
        repository = "/".join(path.split("/")[2:4])
        if "/preupload/" in path:
            modes = {file["path"]: "lfs" if file["size"] >= LARGE else "regular" for file in json.loads(body)["files"]}
            said = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
            return self.answer({"files": said})
        before = self.hub.commits[repository][-1] if self.hub.commits[repository] else {}
        lines = [json.loads(line) for line in body.splitlines()]
        sent = {line["value"]["path"]: line for line in lines if line["key"] != "header"}
        new = {path: self.sent(line["key"], line["value"]) for path, line in sent.items()}
        commit = self.hub.add(repository, {**before, **new, **self.hub.spoilt})
        url = f"http://{self.headers['Host']}/{repository}/commit/{commit}"
        return self.answer({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def sent(self, kind: str, value: dict) -> bytes:
        """The content of a file in a commit."""
        return self.hub.large[value["oid"]] if kind == "lfsFile" else base64.b64decode(value["content"])

    def to_send(self, asked: dict) -> dict:
        """The answer of LFS for a file: the address to put it, if it is new."""
        place = f"http://{self.headers['Host']}/lfs/{asked['oid']}"
        actions = {} if asked["oid"] in self.hub.large else {"actions": {"upload": {"href": place, "header": {}}}}
        return {name: asked[name] for name in ("oid", "size")} | actions

    def do_PUT(self) -> None:
        self.hub.asked.append(f"PUT {self.path}")
        self.hub.large[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b"")


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """The address of a server of ``hub``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
