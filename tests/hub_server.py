"""A server on this machine that speaks the hub's endpoints that `phi4mm pull` uses.

``GET /api/models/OWNER/NAME[/revision/REV]?blobs=True`` lists files with sizes and hashes,
``GET /OWNER/NAME/resolve/COMMIT/FILE`` gives them, with ranges; large ones by way of a redirect, as
the hub does it.  It can be told to misbehave.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
LARGE = (".safetensors", ".gguf", "tokenizer.json")


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


@dataclass
class Hub:
    """A repository and how it is served.

    Attributes:
        repo: ``OWNER/NAME``.
        folder: its files.
        url: of the server.
        token: without it everything is refused, if it is given.
        cut_after: by file name, bytes after which the connection breaks, once for each number.
        replaced: by file name, what is sent in its place.
        statuses: by file name, statuses that are answered before it is sent.
        knows_ranges: whether ranges are obeyed.
        on_request: called with the name of each file before it is sent.
        requests: (file name, first byte asked for) of every transfer.
    """

    repo: str
    folder: Path
    url: str = ""
    token: str | None = None
    cut_after: dict[str, list[int]] = field(default_factory=dict)
    replaced: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    knows_ranges: bool = True
    on_request: Callable[[str], None] = lambda name: None
    requests: list[tuple[str, int]] = field(default_factory=list)

    def listing(self) -> dict[str, object]:
        return {
            "id": self.repo,
            "modelId": self.repo,
            "sha": COMMIT,
            "siblings": [self._sibling(path) for path in sorted(self.folder.rglob("*"))
                         if path.is_file()],
        }  # fmt: skip

    def _sibling(self, path: Path) -> Mapping[str, object]:
        data = path.read_bytes()
        name = path.relative_to(self.folder).as_posix()
        sibling = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
        if name.endswith(LARGE):
            sha256 = hashlib.sha256(data).hexdigest()
            sibling["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 134}
        return sibling

    def n_transfers(self, name: str) -> int:
        return sum(requested == name for requested, _ in self.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        if path.startswith("/large/"):  # the storage behind the redirect asks for no token
            self._send_file(path.removeprefix("/large/"))
        elif hub.token is not None and self.headers["Authorization"] != f"Bearer {hub.token}":
            self._send_json(401, {"error": "Invalid credentials"}, "RepoNotFound")
        elif match := re.fullmatch(rf"/api/models/{hub.repo}(?:/revision/(.+))?", path):
            if match[1] in (None, "main", "v1", COMMIT):
                self._send_json(200, hub.listing())
            else:
                self._send_json(404, {"error": "Invalid rev id"}, "RevisionNotFound")
        elif match := re.fullmatch(rf"/{hub.repo}/resolve/{COMMIT}/(.+)", path):
            self._resolve(match[1])
        else:
            self._send_json(401, {"error": "Repository not found"}, "RepoNotFound")

    def _resolve(self, name: str) -> None:
        if self.hub.statuses.get(name):
            self._send_json(self.hub.statuses[name].pop(0), {})
        elif not name.endswith(LARGE):
            self._send_file(name)
        else:
            self.send_response(302)
            self.send_header("Location", f"{self.hub.url}/large/{name}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send_file(self, name: str) -> None:
        hub = self.hub
        data = hub.replaced.get(name) or (hub.folder / name).read_bytes()
        start, stop = 0, len(data)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
        is_part = match is not None and hub.knows_ranges
        if match is not None and is_part:
            start, stop = int(match[1]), min(stop, int(match[2]) + 1)
        is_transfer = stop == len(data)
        if is_transfer:
            hub.requests.append((name, start))
            hub.on_request(name)
        self.send_response(206 if is_part else 200)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        body = data[start:stop]
        if is_transfer and hub.cut_after.get(name):
            self.wfile.write(body[: hub.cut_after[name].pop(0)])
            self.close_connection = True
            return
        self.wfile.write(body)

    def _send_json(self, status: int, value: object, code: str = "") -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has seen enough is no fault."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve a repository."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with _Server(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
