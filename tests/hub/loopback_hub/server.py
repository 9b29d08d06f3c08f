"""The loopback Hub as a context manager: two ports, a log of requests, and faults."""

import re
import threading
from http.server import ThreadingHTTPServer

from . import discussions, reading, writing  # noqa: F401  (they register the routes)
from .handler import Handler, route
from .store import Store

PART_SIZE = 64 * 1024 * 1024  # bytes; a larger LFS object is sent in parts


class LoopbackHub:
    """root: the folder it keeps everything in; orgs: organisation -> its users; frameworks: the closed list of evaluation frameworks, if any.

    `log`: one dict a request: method, path, user, status (0: cut), and `error` or `fault` where there was one.
    """

    def __init__(self, root, port=0, orgs=None, part_size=PART_SIZE, frameworks=None):
        self.store, self.part_size, self.frameworks = Store(root, orgs), part_size, frameworks
        self.log, self._faults, self._lock = [], [], threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        # LFS content has a port of its own: the client follows a redirect only to where it stops sending its token.
        self._content = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        for server in (self._http, self._content):
            server.daemon_threads, server.hub = True, self
        self.url, self.content_url = (f"http://127.0.0.1:{s.server_address[1]}" for s in (self._http, self._content))

    def env(self, user=None) -> dict[str, str]:
        """What a client's environment needs; user None: no token."""
        env = {
            "HF_ENDPOINT": self.url,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        }
        return {**env, "HF_TOKEN": f"hf_{user}"} if user else env

    def fault(self, method, path, times=1, **how) -> None:
        """Let the next `times` requests of this method whose path the pattern finds fail.

        how: status (answer with it), delay (seconds before anything else), cut_after (bytes of the request's or the answer's body, then the
        connection is reset), cut_answer (True: the request is carried out, and the connection is reset instead of an answer).
        """
        with self._lock:
            self._faults.append({"method": method, "path": re.compile(path), "times": times, **how})

    def take_fault(self, method, path):
        with self._lock:
            for fault in self._faults:
                if fault["times"] > 0 and fault["method"] == method and fault["path"].search(path):
                    fault["times"] -= 1
                    return fault

    def asked(self, method, path) -> list[dict]:
        """The log's requests of this method whose path the pattern finds."""
        return [r for r in list(self.log) if r["method"] == method and re.search(path, r["path"])]

    def start(self):
        for server in (self._http, self._content):
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self):
        for server in (self._http, self._content):
            server.shutdown()
            server.server_close()

    __enter__ = start

    def __exit__(self, *_):
        self.stop()


# The same levers over HTTP, for a server that was started from a shell.


@route("POST", r"/_hub/fault")
def fault(handler, store):
    handler.server.hub.fault(**handler.json_body())
    return handler.send({})


@route("GET", r"/_hub/log")
def show_log(handler, store):
    return handler.send(handler.server.hub.log[:-1])


@route("POST", r"/_hub/reset-log")
def reset_log(handler, store):
    handler.server.hub.log.clear()
    return handler.send({})
