"""What is asked of a clip: the prompts that the model was trained with.

Source: docs/model.md, "Prompts".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phi4mm.errors import InputError

TaskName = Literal["transcribe", "translate"]

LANGUAGES = {
    "en": "English",
    "zh": "Chinese",
    "de": "German",
    "fr": "French",
    "it": "Italian",
    "ja": "Japanese",
    "es": "Spanish",
    "pt": "Portuguese",
}


@dataclass(frozen=True, slots=True)
class Task:
    """What to do with speech.

    Attributes:
        name: which task.
        prompt: the words for the model.
    """

    name: TaskName
    prompt: str


TRANSCRIBE = Task("transcribe", "Transcribe the audio clip into text.")


def language_name(language: str) -> str | None:
    """The English name of a language given by code or name; None if the model does not know it."""
    wanted = language.strip().casefold()
    found = (name for code, name in LANGUAGES.items() if wanted in (code, name.casefold()))
    return next(found, None)


def known_languages() -> str:
    """The languages of the model's speech training, for messages."""
    return ", ".join(f"{code} ({name})" for code, name in LANGUAGES.items())


def translate_to(language: str) -> Task:
    """Translation of speech into a language given by its code or English name.

    Raises:
        InputError: it is not a language of the model's speech training.
    """
    name = language_name(language)
    if name is None:
        raise InputError(f"language {language!r}: the model's speech knows {known_languages()}")
    return Task("translate", f"Translate the audio to {name}.")
