"""Where media may come from: what is decoded, what is fetched, and what never is."""

import base64
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from phi4mm.errors import MediaError
from phi4mm.server import media_fetch
from phi4mm.server.media_fetch import fetch, is_public
from phi4mm.server.media_url import load_media
from phi4mm.server.settings import MediaAccess

DATA = bytes(range(256))
B64 = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "url",
    [
        B64, B64.rstrip("="), base64.urlsafe_b64encode(DATA).decode(), f"data:;base64,{B64}",
        f"data:image/png;base64,{B64[:40]}\n {B64[40:]}", f"DATA:image/png;charset=x;BASE64,{B64}",
        "data:," + "".join(f"%{byte:02x}" for byte in DATA),
    ],
)  # fmt: skip
def test_data_in_a_url(url):
    assert load_media(url, "image", MediaAccess()) == DATA


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1",
        "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::",
        "ff02::1",
    ],
)  # fmt: skip
def test_addresses_inside_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_addresses_outside_are_public(address):
    assert is_public(address)


class Host(BaseHTTPRequestHandler):
    """Answers by path."""

    def do_GET(self):
        port = self.server.server_port
        targets = {
            "/elsewhere": f"http://127.0.0.2:{port}/ok", "/there": "/ok", "/loop": "/loop",
            "/file": "file:///etc/passwd", "/nowhere": "",
        }  # fmt: skip
        if self.path in targets:
            self.send_response(302)
            self.send_header("Location", targets[self.path])
            self.end_headers()
            return
        if self.path == "/slow-head":
            with suppress(OSError):
                while True:
                    self.wfile.write(b"H")
                    time.sleep(0.1)
        self.send_response(200 if self.path in ("/ok", "/large", "/slow", "/short") else 404)
        if self.path == "/short":
            self.send_header("Content-Length", str(len(DATA) + 5))
        self.end_headers()
        with suppress(OSError):  # the other side may have gone
            if self.path in ("/ok", "/short"):
                self.wfile.write(DATA)
            while self.path in ("/large", "/slow"):
                self.wfile.write(b"x" * (100_000 if self.path == "/large" else 1))
                self.wfile.flush()
                if self.path == "/slow":
                    time.sleep(0.1)

    def log_message(self, *args):
        pass


@pytest.fixture
def host(monkeypatch):
    """The address of a host that is taken for a public one, unlike its second address."""
    monkeypatch.setattr(media_fetch, "is_public", lambda address: address == "127.0.0.1")
    server = ThreadingHTTPServer(("", 0), Host)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


ACCESS = MediaAccess(hosts=("*",), max_bytes=1_000_000, timeout_s=1.0)


def test_a_picture_is_fetched(host):
    assert fetch(f"{host}/ok", "image", ACCESS) == DATA
    assert fetch(f"{host}/there", "image", ACCESS) == DATA


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/elsewhere", "not a public one"),
        ("/loop", "redirected more than"),
        ("/file", "must begin with http"),
        ("/nowhere", "redirected more than"),
        ("/large", "longer than the limit of 1000000 bytes"),
        ("/slow", "took longer than 1 s"),
        ("/slow-head", "took longer than 1 s"),
        ("/short", "broke off 5 bytes before the end"),
        ("/absent", "status 404"),
    ],
)
def test_what_is_not_fetched(host, path, words):
    began = time.monotonic()
    with pytest.raises(MediaError, match=words):
        fetch(host + path, "image", ACCESS)
    assert time.monotonic() - began < 5


def test_hosts_that_are_not_named(host):
    with pytest.raises(MediaError, match="not one the server may fetch from"):
        fetch(f"{host}/ok", "image", MediaAccess(hosts=("example.org",)))
    with pytest.raises(MediaError, match="fetching is off"):
        fetch(f"{host}/ok", "image", MediaAccess())


def test_nobody_listens():
    access = MediaAccess(hosts=("127.0.0.1",))
    with pytest.raises(MediaError, match="not a public one"):
        fetch("http://127.0.0.1:1/", "image", access)
