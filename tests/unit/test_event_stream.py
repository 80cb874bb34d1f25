"""Streams that have nothing to say for a while, and those that end with an error."""

import asyncio
from contextlib import nullcontext

import pytest

from phi4mm.errors import Cancelled, NativeError
from phi4mm.server import event_stream
from phi4mm.server.event_stream import EventStream


class Service:
    """Knows no limits."""

    def limited(self, job):
        return nullcontext()


def sent_by(pieces):
    """Everything a stream of these pieces sends."""
    parts = []

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        parts.append(message.get("body", b"").decode())

    asyncio.run(EventStream(Service(), None, pieces)({}, receive, send))
    return "".join(parts)


async def pieces(*steps):
    """Waits, raises or gives, step by step."""
    for step in steps:
        if isinstance(step, float):
            await asyncio.sleep(step)
        elif isinstance(step, Exception):
            raise step
        else:
            yield step


def test_pieces_and_the_end():
    assert sent_by(pieces({"a": 1}, {"b": "é"})) == (
        'data: {"a":1}\n\ndata: {"b":"é"}\n\ndata: [DONE]\n\n'
    )


def test_a_silent_stream_shows_that_it_lives(monkeypatch):
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 0.05)
    sent = sent_by(pieces({"a": 1}, 0.18, {"b": 2}))
    first, *comments, last, end, rest = sent.split("\n\n")
    assert (first, last, end, rest) == ('data: {"a":1}', 'data: {"b":2}', "data: [DONE]", "")
    assert len(comments) in (2, 3)
    assert set(comments) == {": still working"}


@pytest.mark.parametrize("error", [NativeError("llama_decode", -3), ValueError("a bug")])
def test_an_error_is_the_last_event(error):
    sent = sent_by(pieces({"a": 1}, error))
    assert sent.startswith('data: {"a":1}\n\ndata: {"error":')
    assert "[DONE]" not in sent
    assert "a bug" not in sent  # it is in the log


def test_nothing_is_sent_to_who_has_gone():
    assert sent_by(pieces({"a": 1}, Cancelled("gone"))) == 'data: {"a":1}\n\n'
