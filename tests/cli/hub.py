"""As much of the Hugging Face Hub, on loopback, as fetching and giving away a dataset needs."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeHub:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        """What the one dataset holds."""
        self.heard: list[tuple[str, str]] = []
        self.tokens: set[str] = set()
        self.given: dict[str, bytes] = {}
        self.commit: dict = {}
        self.collected: list[dict] = []
        self.may_make = True
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path, _, query = self.path.partition("?")
                owner.heard.append((self.command, path))
                owner.tokens.add(self.headers.get("Authorization", ""))
                self._send(*owner.answer(self.command, path, query, body))

            do_HEAD = do_POST = do_GET  # noqa: N815 - the standard library's names

            def _send(self, status: int, body: bytes | dict | list) -> None:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                about = ("X-Error-Code", "EntryNotFound") if status == 404 else ("ETag", f'"{len(content)}"')
                for name, value in (("X-Repo-Commit", "c" * 40), about):
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, query: str, body: bytes):
        if "/resolve/" in path:
            content = self.files.get(path.partition("/resolve/main/")[2])
            return (404, b"") if content is None else (200, content)
        if "/tree/" in path:
            return 200, [
                {"type": "file", "path": name, "size": len(row), "oid": "a"} for name, row in self.files.items()
            ]
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            return (200, {"url": f"{self.url}/datasets/{repo}"}) if self.may_make else (403, {"error": "not yours"})
        return self._written(method, path, query, [json.loads(line) for line in body.splitlines()])

    def _written(self, method: str, path: str, query: str, lines: list[dict]):
        if "/preupload/" in path:
            names = [one["path"] for one in lines[0]["files"]]
            return 200, {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
        if "/commit/" in path:
            return self._committed(path, query, lines)
        if path.startswith("/api/collections"):
            self.collected += [lines[0]["item"]] if method == "POST" else []
            return 200, COLLECTION
        return 404, {"error": "unknown"}

    def _committed(self, path: str, query: str, lines: list[dict]):
        self.commit = lines[0]["value"]
        self.given |= {line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines[1:]}
        place = f"{self.url}/datasets/{path.split('/')[3]}/{path.split('/')[4]}"
        pull = f"{place}/discussions/1" if "create_pr" in query else None
        return 200, {"commitUrl": f"{place}/commit/abc", "commitOid": "abc", "pullRequestUrl": pull}


COLLECTION = {
    "slug": "some/collection-1",
    "title": "Collection",
    "owner": {"name": "some"},
    "items": [],
    "lastUpdated": "2025-01-01T00:00:00.000Z",
    "position": 0,
    "private": False,
    "theme": "blue",
    "upvotes": 0,
}
