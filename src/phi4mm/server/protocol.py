"""What the server process and its engine child say to each other, over a pipe."""

from __future__ import annotations

from dataclasses import dataclass

from phi4mm.engine.event import Event
from phi4mm.engine.parameters import SamplingParams
from phi4mm.engine.slot_pool import SlotView
from phi4mm.errors import InputError, ModelFileError, Overloaded
from phi4mm.prompt.chunk import Prompt


@dataclass(frozen=True, slots=True)
class Submit:
    """Answer a prompt once for each id.  Ids are the server's, and never used again."""

    ids: tuple[int, ...]
    prompt: Prompt
    samplings: tuple[SamplingParams, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for these answers any more."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process."""


Command = Submit | Cancel | Stop


@dataclass(frozen=True, slots=True)
class Ready:
    """The weights are loaded."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What came of a step, and how things stand after it."""

    events: tuple[tuple[int, Event], ...]
    slots: tuple[SlotView, ...]
    n_waiting: int
    encoder_lookups: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine does not take this one, or cannot go on with it."""

    id: int
    error: InputError | Overloaded | ModelFileError


@dataclass(frozen=True, slots=True)
class Logged:
    """A line for the log; ``level`` is one of ``logging``'s."""

    logger: str
    level: int
    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """What the process raises and ends with, as Python prints it."""

    traceback: str


Report = Ready | Progress | Refused | Logged | Failed
