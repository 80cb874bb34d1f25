"""The JSON schema that an answer has to fit: as asked for, or because it must be a tool call."""

from __future__ import annotations

import json
from typing import Any

from phi4mm.errors import InputError
from phi4mm.server import wire
from phi4mm.server.translate import must_call, offered_tools

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
# All the engine's requests wait while a schema is compiled; this many take less than a second.
_MOST_CHARACTERS = 200_000


def answer_schema(request: wire.ChatRequest) -> str | None:
    """JSON text of the schema; None where the answer is free.

    A call that is demanded comes before a format that is asked for.

    Raises:
        InputError: ``response_format`` lacks its schema, ``tool_choice`` names no tool, or the
            schema is too long.
    """
    schema = _schema(request)
    if schema is None:
        return None
    text = json.dumps(schema)
    if len(text) > _MOST_CHARACTERS:
        raise InputError(
            f"the JSON schema has {len(text)} characters: the limit is {_MOST_CHARACTERS}"
        )
    return text


def _schema(request: wire.ChatRequest) -> dict[str, Any] | None:
    if must_call(request):
        is_single = request.parallel_tool_calls is False or request.tool_choice != "required"
        return _calls_schema(offered_tools(request), is_single=is_single)
    output = request.response_format
    if output is None or output.type == "text":
        return None
    if output.type == "json_object":
        return _ANY_OBJECT
    if output.json_schema is None:
        raise InputError("response_format is json_schema without one: give json_schema.schema")
    return output.json_schema.schema_


def _calls_schema(tools: list[wire.Function], *, is_single: bool) -> dict[str, Any]:
    """A list of calls as the model writes them, without the marker before it."""
    schema = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call_schema(tool, place) for place, tool in enumerate(tools)]},
    }
    return schema | ({"maxItems": 1} if is_single else {})


def _call_schema(tool: wire.Function, place: int) -> dict[str, Any]:
    at = f"#/items/anyOf/{place}/properties/arguments"
    arguments = _moved(tool.parameters or _ANY_OBJECT, at)
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, at: str) -> Any:
    """A schema whose references to itself still hold when it stands inside another one."""
    if isinstance(schema, list):
        return [_moved(item, at) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: at + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, at)
        for key, value in schema.items()
    }
