"""Answers as server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from phi4mm.errors import Cancelled
from phi4mm.server.choice import Json
from phi4mm.server.engine_client import Cancellable
from phi4mm.server.error import status_and_body
from phi4mm.server.service import Service, cancelled_on_disconnect

# Proxies and clients take a connection for dead that is silent for long, as it would be while a
# large picture is encoded.
KEEP_ALIVE_S = 15.0
_COMMENT = ": still working\n\n"

_log = logging.getLogger(__name__)


class EventStream(Response):
    """Sends pieces of JSON as they come; ends its job however it ends.

    An error after the first piece is an event of its own: the status has been sent by then.

    Args:
        service: whose limits apply.
        job: what the pieces are made of.
        pieces: JSON objects.
        end: what stands in the last event, if there is one.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        service: Service,
        job: Cancellable,
        pieces: AsyncIterator[Json],
        end: str | None = "[DONE]",
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._service, self._job, self._pieces, self._end = service, job, pieces, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        with self._service.limited(self._job):
            async with cancelled_on_disconnect(receive, self._job):
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                async for text in self._texts():
                    await send(_part(text, more=True))
                await send(_part("", more=False))

    async def _texts(self) -> AsyncIterator[str]:
        try:
            async for piece in _with_pauses(self._pieces):
                yield _COMMENT if piece is None else _event(_compact(piece))
        except Cancelled:
            return  # nobody listens
        except Exception as error:
            status, body = status_and_body(error)
            if status == 500:
                _log.exception("a stream ended with an error")
            yield _event(json.dumps(body))
            return
        if self._end is not None:
            yield _event(self._end)


async def _with_pauses(pieces: AsyncIterator[Json]) -> AsyncIterator[Json | None]:
    """The same, with None whenever nothing has come for a while."""
    while True:
        piece = asyncio.ensure_future(anext(pieces))
        try:
            while not (await asyncio.wait({piece}, timeout=KEEP_ALIVE_S))[0]:
                yield None
            yield piece.result()
        except StopAsyncIteration:
            return
        finally:
            piece.cancel()


def _compact(piece: Json) -> str:
    return json.dumps(piece, ensure_ascii=False, separators=(",", ":"))


def _event(data: str) -> str:
    return f"data: {data}\n\n"


def _part(text: str, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}
