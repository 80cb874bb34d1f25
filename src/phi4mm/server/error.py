"""The one table from what went wrong to the status and the error object that clients see."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from phi4mm.errors import (
    Cancelled,
    InputError,
    MediaError,
    MediaTooLarge,
    Overloaded,
    Phi4MMError,
    PromptTooLong,
    SettingError,
)


class ApiError(Exception):
    """A request that is refused before the model has a say.

    Attributes:
        status: of HTTP.
        code: OpenAI's word for it, or None.
        param: the field at fault, or None.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class EngineUnavailable(Phi4MMError):
    """The engine is loading, or died while it worked on the request."""


class TimedOut(Phi4MMError):
    """The request took longer than one may take."""


@dataclass(frozen=True, slots=True)
class _Row:
    status: int
    type: str
    code: str | None = None


# The first that fits is taken.
_TABLE: tuple[tuple[type[Phi4MMError], _Row], ...] = (
    (PromptTooLong, _Row(400, "invalid_request_error", "context_length_exceeded")),
    (MediaError, _Row(400, "invalid_request_error", "invalid_media")),
    (InputError, _Row(400, "invalid_request_error")),
    (Overloaded, _Row(429, "rate_limit_error", "overloaded")),
    (EngineUnavailable, _Row(503, "server_error", "engine_unavailable")),
    (TimedOut, _Row(503, "server_error", "timed_out")),
    (Cancelled, _Row(499, "client_closed_request")),
    (Phi4MMError, _Row(500, "server_error")),
)
# what a medium has too much of -> the server's setting for it
_LIMITS = {"pixels": "--max-pixels", "seconds": "--max-audio"}
# Where a value may have one of several types, pydantic names the one it tried among the fields that
# lead to a fault; a part of a message is named by its own "type" behind its number.
_TYPE_NAME = re.compile(r"\[|^(str|int|NamedTool)$")
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
RETRY_AFTER_S = "5"


def status_and_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """The HTTP status and OpenAI's error object for an error."""
    param = None
    if isinstance(error, ApiError):
        row = _Row(error.status, _type_of(error.status), error.code)
        message, param = str(error), error.param
    elif isinstance(error, ValidationError):
        row, (message, param) = _Row(400, "invalid_request_error"), _first_fault(error)
    elif isinstance(error, ClientDisconnect):
        row, message = _Row(499, "client_closed_request"), "the client has gone"
    elif isinstance(error, HTTPException):
        row, message = _Row(error.status_code, _type_of(error.status_code)), error.detail
    elif isinstance(error, Phi4MMError):
        row = next(row for kind, row in _TABLE if isinstance(error, kind))
        message = str(error)
        if isinstance(error, MediaTooLarge):
            message += f" ({_LIMITS[error.limit]})"
        param = error.name if isinstance(error, SettingError) else None
    else:
        row, message = _Row(500, "server_error"), "internal error; the server's log has more"
    body = {"message": message, "type": row.type, "param": param, "code": row.code}
    return row.status, {"error": body}


def _type_of(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def _first_fault(error: ValidationError) -> tuple[str, str | None]:
    """(message, field) of what does not fit.

    A value that may have one of several types has a fault for each: the one that was found deepest
    inside is of the type that was meant, if none of them is that there is too much.
    """
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    fault = max(faults, key=lambda fault: (fault["type"] == "too_long", len(fault["loc"])))
    param = ".".join(_fields(fault["loc"])) or None
    return f"{param or 'the body'}: {fault['msg']}", param


def _fields(location: Sequence[str | int]) -> Iterator[str]:
    names = [name for name in location if not _TYPE_NAME.search(str(name))]
    for place, name in enumerate(names):
        is_kind_of_part = place > 1 and names[place - 2] == "content"
        if not is_kind_of_part:
            yield str(name)


async def respond(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for all of them."""
    status, body = status_and_body(error)
    headers = dict(getattr(error, "headers", None) or {})
    if status in (429, 503):
        headers["Retry-After"] = RETRY_AFTER_S
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status, headers)
