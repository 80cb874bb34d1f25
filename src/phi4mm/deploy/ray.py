"""The server on a Ray cluster: ``phi4mm.deploy.ray:app`` is what a Serve config names.

Two deployments.  ``Model`` replicas are servers as ``phi4mm serve`` starts them, without a port.
``Front`` takes the HTTP requests, sends those about the same picture, clip or talk to the same
replica (Serve's consistent-hash router), and asks another one when a replica is lost.

Only Serve imports this module: it needs the extra ``ray``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phi4mm.deploy.cluster_view import JOINED_PATHS, joined
from phi4mm.deploy.exchange import Call, answers
from phi4mm.deploy.relay import Relay
from phi4mm.deploy.settings import ReplicaSettings, from_values
from phi4mm.errors import Overloaded
from phi4mm.server.access import BodyLimit
from phi4mm.server.app import ERRORS, make_app
from phi4mm.server.error import EngineUnavailable, respond
from phi4mm.server.service import Service

# A request that kills what computes it must not kill them all.
_N_ATTEMPTS = 3
_N_FALLBACKS = 16
_JOIN_S = 10.0
_POLL_S = 0.05
_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"


class Model:
    """One server: its engine, and what stands before it except for the port."""

    async def __init__(self, settings: ReplicaSettings) -> None:  # type: ignore[misc]  # awaited
        """Load the model; Serve sends requests once this has returned.

        Raises:
            ModelFileError: a file cannot be used.
            InputError: a setting is out of range.
            EngineUnavailable: the engine died while it loaded.
        """
        server = settings.with_keys()
        if server.engine.n_threads is None:
            n_cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
            engine = replace(server.engine, n_threads=max(1, int(n_cpus)))
            server = replace(server, engine=engine)
        self._service = Service(server)
        self._app = make_app(self._service)
        self._lifespan = self._app.router.lifespan_context(self._app)
        await self._lifespan.__aenter__()
        engine_client = self._service.engine
        while engine_client.state != "ok":
            if engine_client.n_restarts > 0:
                await self._lifespan.__aexit__(None, None, None)
                raise EngineUnavailable("the engine died while it loaded the model")
            await asyncio.sleep(_POLL_S)

    async def answer(self, call: Call) -> AsyncGenerator[Message, None]:
        """Answer a request, message by message.

        Raises:
            EngineUnavailable: the engine is loading again.
        """
        if self._service.engine.state != "ok":
            raise EngineUnavailable("the model is loading: try again later")
        async for message in answers(self._app, call):
            yield _without_id(message)

    async def read(self, call: Call) -> tuple[str, int, bytes]:
        """(id of this replica, status, body) of a short answer."""
        status, body = 500, b""
        async for message in answers(self._app, call):
            status = message.get("status", status)
            body += message.get("body", b"")
        return serve.get_replica_context().replica_id.unique_id, status, body

    async def __del__(self) -> None:
        """Stop the engine; Serve calls this when the replica's requests are done."""
        await self._lifespan.__aexit__(None, None, None)


class Front:
    """Takes requests and has them answered by the replicas of ``Model``."""

    def __init__(self, model: Any, body_bytes: int) -> None:
        self._model = model
        relay = Relay(self._ask, _N_ATTEMPTS)
        self._app = Starlette(
            routes=[Mount("/", app=relay)],
            middleware=[Middleware(BodyLimit, n_bytes=body_bytes)],
            exception_handlers=dict.fromkeys(ERRORS, respond),
        )

    async def __call__(self, request: Request) -> Response:
        """Serve's entry: the response is written by the application."""
        return _Written(self._app)

    async def _ask(self, call: Call, key: str | None) -> AsyncGenerator[Message, None]:
        ask = self._join if call.method == "GET" and call.path in JOINED_PATHS else self._of_one
        try:
            async with aclosing(ask(call, key)) as messages:
                async for message in messages:
                    yield message
        except RayActorError as error:
            raise EngineUnavailable(
                "the replica died while it worked on this: try again"
            ) from error
        except BackPressureError as error:
            raise Overloaded("too many requests are waiting: try again later") from error

    async def _of_one(self, call: Call, key: str | None) -> AsyncGenerator[Message, None]:
        handle = self._model.options(stream=True, session_id=key or "")
        stream = handle.answer.remote(call)
        try:
            async for message in stream:
                yield message
        finally:
            stream.cancel()  # of a finished one it does nothing

    async def _join(self, call: Call, key: str | None) -> AsyncGenerator[Message, None]:
        """The answer of all replicas together, or the first refusal."""
        results = self._model.broadcast("read", call)
        found: list[tuple[str, int, bytes]] = await results.results_async(timeout_s=_JOIN_S)
        refused = [(status, body) for _, status, body in found if status != 200]
        if refused:
            (status, body), content_type = refused[0], "application/json"
        else:
            bodies = {replica: body for replica, _, body in found}
            status, (body, content_type) = 200, joined(call.path, bodies)
        for message in _messages(status, body, content_type):
            yield message


class _Written(Response):
    """A response that an application writes."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _without_id(message: Message) -> Message:
    """Serve's proxy puts the request's id into every answer, so ours would be a second one."""
    if message["type"] != "http.response.start":
        return message
    headers = [(name, value) for name, value in message["headers"] if name != b"x-request-id"]
    return {**message, "headers": headers}


def _messages(status: int, body: bytes, content_type: str) -> list[Message]:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    return [
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body, "more_body": False},
    ]


def app(args: dict[str, Any]) -> serve.Application:
    """The Serve application.

    Args:
        args: ``ReplicaSettings`` as plain values; ``phi4mm export ray`` writes them.

    Raises:
        InputError: a value is missing, unknown or out of range.
    """
    settings = from_values(args)
    engine = settings.server.engine
    model = serve.deployment(Model).options(
        name="Model",
        max_ongoing_requests=engine.n_slots + engine.n_long_slots,
        max_queued_requests=engine.max_waiting,
        graceful_shutdown_timeout_s=settings.server.limits.request_s,
        request_router_config=RequestRouterConfig(
            request_router_class=_ROUTER,
            request_router_kwargs={"num_fallback_replicas": _N_FALLBACKS},
        ),
    )
    front = serve.deployment(Front).options(name="Front", max_ongoing_requests=1000)
    return front.bind(model.bind(settings), settings.server.limits.body_bytes)
