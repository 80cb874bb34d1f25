"""Turns lines of a manifest of `phi4mm eval` into documents of lmms-eval, pictures and clips both.

Clips go as data URLs: lmms-eval's client passes the URL of a clip on as it is.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from PIL import Image

_FOLDER = Path("src/phi4mm/sample/media")

Doc = dict[str, Any]


def with_media(docs: Any) -> Any:
    """The documents with a picture or a clip."""
    return docs.filter(lambda doc: doc["image"] is not None or doc["audio"] is not None)


def visuals(doc: Doc) -> list[Image.Image]:
    """The pictures of a document, for clients without chat messages."""
    return [] if doc["image"] is None else [Image.open(_FOLDER / doc["image"]).convert("RGB")]


def question(doc: Doc, lmms_eval_specific_kwargs: Any = None) -> str:
    """The words; none where a clip asks."""
    return doc["question"] or ""


def answer(doc: Doc) -> str:
    """What is right."""
    return doc["answers"][0]


def messages(doc: Doc, lmms_eval_specific_kwargs: Any = None) -> list[Doc]:
    """One turn of the user: picture, clip, words."""
    content: list[Doc] = [{"type": "image", "url": picture} for picture in visuals(doc)]
    if doc["audio"] is not None:
        data = base64.b64encode((_FOLDER / doc["audio"]).read_bytes()).decode()
        content.append({"type": "audio", "url": f"data:audio/flac;base64,{data}"})
    if words := question(doc):
        content.append({"type": "text", "text": words})
    return [{"role": "user", "content": content}]
