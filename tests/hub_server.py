"""An in-memory Hugging Face Hub with just enough of its API for an upload and a download."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Hub(ThreadingHTTPServer):
    """A server of one repository's files for the client of huggingface_hub."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.files: dict[str, bytes] = {}
        self.created: list[dict[str, object]] = []
        self.messages: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


class Request(BaseHTTPRequestHandler):
    """A handler whose answers have the form of the Hub's."""

    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, content: object, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        hub = self.server
        if self.path == "/api/repos/create":
            hub.created.append(json.loads(body))
            self.answer({"url": f"{hub.url}/team/digits"})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [file["path"] for file in json.loads(body)["files"]]
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer({"files": [{"path": path, **mode} for path in files]})
        else:  # /commit/
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "header":
                    hub.messages.append(line["value"]["summary"])
                elif line["key"] == "file":
                    hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"{hub.url}/team/digits/commit/{hub.commit}"
            self.answer({"commitUrl": url, "commitOid": hub.commit, "success": True})

    def do_GET(self) -> None:
        hub, (path, _, _) = self.server, self.path.partition("?")
        if "/team/digits" not in path:
            self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        elif "/tree/" in path:
            found = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in hub.files.items()
            ]
            self.answer(found)
        elif path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in hub.files]
            self.answer({"id": "team/digits", "sha": hub.commit, "siblings": siblings})
        else:
            content = hub.files[path.rsplit("/", 1)[1]]
            self.answer(content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=hub.commit)

    do_HEAD = do_GET


@contextmanager
def served() -> Iterator[Hub]:
    with Hub() as hub:
        Thread(target=hub.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            hub.shutdown()
