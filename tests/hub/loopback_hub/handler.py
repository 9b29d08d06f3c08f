"""One HTTP request of the loopback Hub: its body, its answer, its route, and the faults that a test asked for."""

import contextlib
import json
import re
import socket
import time
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

from .store import HubError

KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
_AFTER_ID = (
    "revision/|tree/|refs$|tag/|branch/|commits/|commit/|preupload/|paths-info/|discussions|leaderboard$|settings$"
)
# A repository in the API. Its name has an owner before it, unless what follows is a word of the API.
REPO = rf"/api/(?P<kind>models|datasets|spaces)/(?P<name>[^/]+(?:/(?!{_AFTER_ID})[^/]+)?)"
ROUTES = []  # (methods, pattern, function)
_UNLOCKED = {"lfs_put", "resolve_file"}  # long transfers


def route(methods: str, pattern: str):
    """Register a function (handler, store, **named groups of the pattern) for "GET", or "GET HEAD"."""

    def register(function):
        ROUTES.append((methods.split(), re.compile(pattern), function))
        return function

    return register


class Handler(BaseHTTPRequestHandler):
    """`repo`: the repository named by the path; `user`: of the token, or None; `query`: the first value of each parameter."""

    protocol_version = "HTTP/1.1"
    server_version = "loopback-hub"
    timeout = 60
    repo: dict

    def log_message(self, *_):
        pass

    # -- the request's body

    def body_pieces(self):
        """The body in pieces; ConnectionError where a fault says to cut, or the client is gone."""
        got, self._read = 0, True
        for piece in self._chunked() if "chunked" in self.headers.get("Transfer-Encoding", "") else self._plain():
            got += len(piece)
            if self.cut is not None and got >= self.cut:
                self.hang_up()
            yield piece

    def _chunked(self):
        while size := int(self.rfile.readline().split(b";")[0].strip() or b"0", 16):
            piece = self.rfile.read(size)
            self.rfile.read(2)
            yield piece
        self.rfile.read(2)

    def _plain(self):
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            piece = self.rfile.read(min(65536, left))
            if not piece:
                raise ConnectionError("the client went away")
            left -= len(piece)
            yield piece

    def hang_up(self):
        with contextlib.suppress(OSError):
            reset = b"\1\0\0\0\0\0\0\0"  # linger for 0 s: the client sees a reset, not an end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            self.connection.close()
        raise ConnectionError("cut by a fault")

    def body(self) -> bytes:
        if self._body is None:
            self._body = b"".join(self.body_pieces())
        return self._body

    def json_body(self) -> dict:
        return json.loads(self.body() or b"{}")

    # -- the answer

    def send(self, data=b"", status=200, headers=None, content_type="application/json") -> int:
        if not isinstance(data, bytes):
            data = json.dumps(data).encode()
        self.drain()
        if self.cut_answer:
            self.hang_up()
        self.send_response(status)
        headers = {"Content-Type": content_type, "Content-Length": str(len(data)), **(headers or {})}
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            if self.cut is not None and len(data) > self.cut:
                self.wfile.write(data[: self.cut])
                self.wfile.flush()
                self.hang_up()
            self.wfile.write(data)
        return status

    def drain(self):
        """Read a body that no route has read, or it would be taken for the next request."""
        if not self._read:
            self.body()

    @property
    def base(self) -> str:
        return f"http://{self.headers.get('Host')}"

    def page(self, kind: str, name: str) -> str:
        return f"{self.base}/{'' if kind == 'model' else kind + 's/'}{name}"

    def need_user(self, write_to: str | None = None) -> None:
        if not self.user:
            raise HubError(401, "Invalid username or password.")
        if write_to and not self.server.hub.store.may_write(self.user, write_to):
            raise HubError(403, f"user {self.user} may not write to {write_to}")

    # -- the request

    def handle_any(self):
        self._body, self._read, self.cut, self.cut_answer = None, False, None, False
        url = urlsplit(self.path)
        self.route, self.query = url.path, {key: values[0] for key, values in parse_qs(url.query).items()}
        token = re.fullmatch(r"(?:Bearer|Basic) hf_([\w-]+)", self.headers.get("Authorization", ""))
        self.user = token.group(1) if token else None
        record = {"method": self.command, "path": self.path, "user": self.user}
        self.server.hub.log.append(record)
        try:
            self._fault(record)
            record["status"] = self._answer()
        except HubError as error:
            record.update(status=error.status, error=error.message)
            headers = {"X-Error-Message": error.message.replace("\n", " ")[:300]}
            if error.code:
                headers["X-Error-Code"] = error.code
            with contextlib.suppress(OSError):
                self.send({"error": error.message}, error.status, headers)
        except (ConnectionError, TimeoutError) as error:
            record.update(status=0, error=str(error))
            self.close_connection = True
        except Exception as error:  # a bug here must look like a 500, not like a hang
            record.update(status=500, error=repr(error))
            with contextlib.suppress(OSError):
                self.send({"error": repr(error)}, 500)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

    def _fault(self, record):
        fault = self.server.hub.take_fault(self.command, self.route)
        if not fault:
            return
        record["fault"] = {k: fault[k] for k in ("cut_after", "cut_answer", "status", "delay") if k in fault}
        time.sleep(fault.get("delay", 0))
        if "status" in fault:
            raise HubError(fault["status"], "made to fail")
        self.cut, self.cut_answer = fault.get("cut_after"), fault.get("cut_answer", False)

    def _answer(self) -> int:
        store = self.server.hub.store
        for methods, pattern, function in ROUTES:
            found = pattern.fullmatch(self.route) if self.command in methods else None
            if not found:
                continue
            names = {key: unquote(value) if value else value for key, value in found.groupdict().items()}
            with contextlib.nullcontext() if function.__name__ in _UNLOCKED else store.lock:
                if "kind" in names and "name" in names:
                    names["kind"] = KINDS[names["kind"] or "models"]
                    self.repo = store.load(names["kind"], names["name"])
                    if self.repo["private"] and not (self.user and store.may_write(self.user, names["name"])):
                        raise HubError(404 if self.user else 401, "Repository Not Found", "RepoNotFound")
                return function(self, store, **names)
        raise HubError(404, f"no such endpoint here: {self.command} {self.route}")
