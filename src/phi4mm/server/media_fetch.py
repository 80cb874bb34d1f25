"""Downloads media for a request without letting it reach what only the server can reach.

The host's name is resolved once, every address is checked, and the connection goes to the address
that was checked; the same again for each redirect.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from threading import Timer
from typing import Literal
from urllib.parse import SplitResult, urljoin, urlsplit

from phi4mm.errors import MediaError
from phi4mm.server.settings import MediaAccess

_MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_BLOCK = 1 << 16


def fetch(url: str, kind: Literal["image", "audio"], access: MediaAccess) -> bytes:
    """The contents of an http(s) URL.

    Raises:
        MediaError: the URL is not allowed, or cannot be had within the limits.
    """
    deadline = time.monotonic() + access.timeout_s
    for _ in range(1 + _MOST_REDIRECTS):
        parts = _allowed(url, kind, access)
        try:
            connection = _connect(parts, kind, deadline)
            with closing(connection), _cut_off_at(deadline, connection.sock):
                answer = _get(connection, parts)
                if answer.status not in _REDIRECTS:
                    return _read(answer, kind, access, deadline)
                url = urljoin(url, answer.headers.get("Location", ""))
        except (OSError, http.client.HTTPException, ValueError) as error:
            _require_time(kind, access, deadline)
            raise MediaError(f"{kind} URL: cannot be fetched ({type(error).__name__})") from None
    raise MediaError(f"{kind} URL: redirected more than {_MOST_REDIRECTS} times")


def _allowed(url: str, kind: str, access: MediaAccess) -> SplitResult:
    if not access.hosts:
        raise MediaError(
            f"{kind} URL: fetching is off; send a data: URL, or start the server with "
            "--allow-media-url HOST"
        )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise MediaError(f"{kind} URL: malformed") from None
    if parts.scheme not in ("http", "https") or not host:
        raise MediaError(f"{kind} URL: must begin with http:// or https:// and name a host")
    if "*" not in access.hosts and host.lower() not in access.hosts:
        raise MediaError(f"{kind} URL: host {host!r} is not one the server may fetch from")
    return parts


def is_public(address: str) -> bool:
    """Whether an IP address is one of the open internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip.sixtofour or ip
    return ip.is_global and not ip.is_multicast


def _connect(parts: SplitResult, kind: str, deadline: float) -> http.client.HTTPConnection:
    """A connection to an address that is public."""
    assert parts.hostname is not None
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    infos = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    addresses = [str(info[4][0]) for info in infos]
    if not all(map(is_public, addresses)):
        raise MediaError(f"{kind} URL: host {parts.hostname!r} is not a public one")
    timeout = max(0.001, deadline - time.monotonic())
    plain = socket.create_connection((addresses[0], port), timeout=timeout)
    connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout)
    connection.sock = (
        ssl.create_default_context().wrap_socket(
            plain, server_hostname=parts.hostname, do_handshake_on_connect=False
        )
        if is_tls
        else plain
    )
    return connection


@contextmanager
def _cut_off_at(deadline: float, connected: socket.socket) -> Iterator[None]:
    """End a connection when its time is over: a host may send a byte now and then for ever."""

    def cut_off() -> None:
        with suppress(OSError):  # the other side was faster
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    timer = Timer(max(0, deadline - time.monotonic()), cut_off)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _get(connection: http.client.HTTPConnection, parts: SplitResult) -> http.client.HTTPResponse:
    if isinstance(connection.sock, ssl.SSLSocket):
        connection.sock.do_handshake()
    target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
    connection.request("GET", target, headers={"User-Agent": "phi4mm", "Accept": "*/*"})
    return connection.getresponse()


def _read(
    answer: http.client.HTTPResponse, kind: str, access: MediaAccess, deadline: float
) -> bytes:
    if answer.status != 200:
        raise MediaError(f"{kind} URL: the host answered with status {answer.status}")
    blocks, n_bytes = [], 0
    while block := answer.read1(_BLOCK):
        blocks.append(block)
        n_bytes += len(block)
        if n_bytes > access.max_bytes:
            raise too_long(kind, access)
    _require_time(kind, access, deadline)
    if answer.length:
        raise MediaError(f"{kind} URL: the host broke off {answer.length} bytes before the end")
    return b"".join(blocks)


def too_long(kind: str, access: MediaAccess) -> MediaError:
    """The error for media that have more bytes than an upload may have."""
    return MediaError(f"{kind} URL: longer than the limit of {access.max_bytes} bytes (--max-body)")


def _require_time(kind: str, access: MediaAccess, deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise MediaError(f"{kind} URL: took longer than {access.timeout_s:g} s")
