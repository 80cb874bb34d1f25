"""From an item of an evaluation to the conversation that asks it."""

from __future__ import annotations

from phi4mm.evals.manifest import ClipItem, Item
from phi4mm.prompt.message import Message, TextPart, user_message
from phi4mm.transcribe.task import TRANSCRIBE


def messages_of(item: Item) -> list[Message]:
    """The system message, if there is one, and the user's."""
    if isinstance(item, ClipItem):
        return [user_message(TRANSCRIBE.prompt, audios=[item.audio])]
    asked = user_message(item.question, images=item.images, audios=item.audios)
    if not (item.system or item.tools):
        return [asked]
    parts = (TextPart(item.system),) if item.system else ()
    return [Message("system", parts, tools=item.tools or None), asked]
