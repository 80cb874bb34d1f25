"""A request on its way to another process, and a server's answer to it as a stream of messages.

Plain ASGI: nothing here knows Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request, whole.

    Attributes:
        method: of HTTP.
        path: without the query.
        query: what follows the question mark, as it came.
        headers: names in small letters, as ASGI has them.
        body: all of it.
    """

    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""

    @classmethod
    async def read(cls, scope: Scope, receive: Receive) -> Call:
        """The request of an ASGI connection.

        Raises:
            ClientDisconnect: the client went away before it had sent everything.
        """
        parts, is_more = [], True
        while is_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            is_more = message.get("more_body", False)
        headers = tuple((bytes(name), bytes(value)) for name, value in scope["headers"])
        return cls(scope["method"], scope["path"], scope["query_string"], headers, b"".join(parts))

    def header(self, name: str) -> str:
        """The value of a header, or an empty string."""
        wanted = name.lower().encode()
        return next((v.decode("latin-1") for n, v in self.headers if n == wanted), "")

    def scope(self) -> dict[str, Any]:
        """What an ASGI application is called with."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers),
            "client": None,
            "server": None,
            "state": {},
        }


async def answers(app: ASGIApp, call: Call) -> AsyncGenerator[Message, None]:
    """What an ASGI application sends in answer to a call, as it comes.

    Closing the generator is the client going away.
    """
    outbox: asyncio.Queue[Message | None] = asyncio.Queue()
    is_gone = asyncio.Event()
    inbox: list[Message] = [{"type": "http.request", "body": call.body, "more_body": False}]

    async def receive() -> Message:
        if inbox:
            return inbox.pop()
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        try:
            await app(call.scope(), receive, outbox.put)
        finally:
            outbox.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while (message := await outbox.get()) is not None:
            yield message
        await task
    finally:
        is_gone.set()
        if not task.done():
            await asyncio.wait({task})
