"""Passes requests on to replicas, and asks another one when the first is lost.

Nothing is lost as long as the client has seen nothing of an answer: the beginning of a response is
held back until the model's first words.  What knows Ray is the function that asks.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from phi4mm.deploy.affinity import affinity_key
from phi4mm.deploy.exchange import Call
from phi4mm.server.error import RETRY_AFTER_S, EngineUnavailable, status_and_body

Ask = Callable[[Call, str | None], AsyncGenerator[Message, None]]

_EVENT = b"data: "
_COMMENT = b":"
_UNAVAILABLE = "engine_unavailable"


class Relay:
    """An ASGI application that has every request answered by a replica.

    Args:
        ask: gives a replica's messages for a call and an affinity key; raises
            ``EngineUnavailable`` where the replica is lost or cannot compute.
        n_attempts: how many replicas are asked at most.
    """

    def __init__(self, ask: Ask, n_attempts: int) -> None:
        self._ask = ask
        self._n_attempts = n_attempts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        call = await Call.read(scope, receive)
        key = affinity_key(call)
        response = HeldResponse(send)
        for attempt in range(self._n_attempts):
            try:
                async with aclosing(self._ask(call, _other_key(key, attempt))) as messages:
                    async for message in messages:
                        await response.pass_on(message)
                return
            except EngineUnavailable as error:
                if response.has_begun or attempt == self._n_attempts - 1:
                    await response.fail(error, scope, receive)
                    return
                response.forget()


def _other_key(key: str | None, attempt: int) -> str | None:
    """A second attempt must not go where the first one went."""
    return key if key is None or attempt == 0 else f"{key}-{attempt}"


class HeldResponse:
    """A response whose beginning is held back until it has something to say.

    Attributes:
        has_begun: whether the client has seen something that another replica would not repeat.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: list[Message] = []
        self._start: Message | None = None
        self._is_started = False
        self.has_begun = False

    def forget(self) -> None:
        """Take back what is held: another replica answers."""
        self._held.clear()
        self._start = None

    async def pass_on(self, message: Message) -> None:
        """Hold a message, or send it with what was held before it.

        Raises:
            EngineUnavailable: the message says so, and nothing has been sent.
        """
        if self.has_begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._start = message
        elif message["body"].startswith(_COMMENT):
            await self._send_start()
            await self._send(message)
        elif _is_opening(message["body"]):
            self._held.append(message)
        else:
            self._refuse_unavailable(message["body"])
            if self._is_started and self._status != 200:  # too late for another status
                message = {**message, "body": _event(_json(message["body"]))}
            await self._send_start()
            self.has_begun = True
            for held in (*self._held, message):
                await self._send(held)

    async def fail(self, error: EngineUnavailable, scope: Scope, receive: Receive) -> None:
        """End with an error, in the form that fits what has been sent."""
        status, body = status_and_body(error)
        if not self._is_started:
            headers = {"Retry-After": RETRY_AFTER_S}
            await JSONResponse(body, status, headers)(scope, receive, self._send)
            return
        end = {"type": "http.response.body", "body": _event(body), "more_body": False}
        await self._send(end)

    async def _send_start(self) -> None:
        if not self._is_started and self._start is not None:
            self._is_started = True
            await self._send(self._start)

    @property
    def _status(self) -> int:
        return 200 if self._start is None else int(self._start["status"])

    def _refuse_unavailable(self, body: bytes) -> None:
        if self._status == 200 and not body.startswith(_EVENT):
            return
        error = _json(body).get("error")
        if isinstance(error, dict) and error.get("code") == _UNAVAILABLE:
            raise EngineUnavailable(error["message"])


def _is_opening(body: bytes) -> bool:
    """Whether an event only says that the assistant speaks, before it has said anything."""
    choices = _json(body).get("choices", []) if body.startswith(_EVENT) else []
    return bool(choices) and all(
        choice.get("delta") == {"role": "assistant", "content": ""} for choice in choices
    )


def _json(body: bytes) -> dict[str, Any]:
    """The object in a body or in a stream's event; an empty one where there is none."""
    try:
        found = json.loads(body.removeprefix(_EVENT))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _event(content: dict[str, Any]) -> bytes:
    return _EVENT + json.dumps(content).encode() + b"\n\n"
