"""Many items asked at the same time: in the slots of an engine, and of engines side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeAlias

from phi4mm.engine.context_plan import ContextPlan
from phi4mm.engine.engine import AdapterChoice, Engine
from phi4mm.engine.parameters import SamplingParams
from phi4mm.errors import InputError
from phi4mm.evals.manifest import Item
from phi4mm.evals.request import messages_of
from phi4mm.prompt.chunk import PromptBuilder


@dataclass(frozen=True, slots=True)
class Asked:
    """An item and how it is asked.

    Attributes:
        item: the question.
        max_tokens: longest answer.
        adapter: "auto" for the one its media ask for; None for none.
    """

    item: Item
    max_tokens: int
    adapter: AdapterChoice = "auto"


@dataclass(frozen=True, slots=True)
class Said:
    """What came of it.

    Attributes:
        text: the answer, without blanks at its ends.
        seconds: from request to end, while others were answered too.
        error: why there is no answer; None if there is.
    """

    text: str
    seconds: float = 0.0
    error: str | None = None


Told: TypeAlias = Callable[[Asked, Said], None]
"""Called with each answer when it is complete."""


@dataclass(slots=True)
class _Running:
    place: int
    began: float
    texts: list[str] = field(default_factory=list)


class SlotAsker:
    """Keeps the slots of an engine busy; each answer takes the most likely token after token.

    Args:
        engine: answers; nobody else uses it meanwhile.
        prompts: from conversations to prompts.
        plan: the sizes of the engine's contexts.
        n_slots: the engine's.
    """

    def __init__(
        self, engine: Engine, prompts: PromptBuilder, plan: ContextPlan, n_slots: int
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._plan = plan
        self._n_slots = n_slots

    def ask(self, asked: Sequence[Asked]) -> Iterator[tuple[int, Said]]:
        """Answers as they come, each with its place; what cannot be asked is an answer too.

        Raises:
            Cancelled: ``stop`` was called.
            NativeError: the native library failed.
        """
        running: dict[int, _Running] = {}
        waiting = enumerate(asked)
        n_left = len(asked)
        while n_left:
            while len(running) < self._n_slots and (entry := next(waiting, None)) is not None:
                try:
                    running[self._submit(entry[1])] = _Running(entry[0], time.perf_counter())
                except InputError as error:
                    n_left -= 1
                    yield entry[0], Said("", error=str(error))
            for place, said in self._step(running):
                n_left -= 1
                yield place, said

    def stop(self) -> None:
        """From another thread: what computes stops with ``Cancelled``, and so does what comes."""
        self._engine.interrupt()

    def _submit(self, asked: Asked) -> int:
        """Hand an item over; the request's id.

        Raises:
            InputError: it cannot be asked.
        """
        prompt = self._prompts.chat(messages_of(asked.item))
        self._plan.require_fit(prompt.n_tokens)
        sampling = SamplingParams(max_tokens=asked.max_tokens)
        return self._engine.submit(prompt, sampling, asked.adapter)

    def _step(self, running: dict[int, _Running]) -> Iterator[tuple[int, Said]]:
        """Compute a little for everyone; the answers that are complete with it."""
        for request_id, event in self._engine.step():
            running[request_id].texts.append(event.text)
            if event.finish_reason is not None:
                done = running.pop(request_id)
                seconds = time.perf_counter() - done.began
                yield done.place, Said("".join(done.texts).strip(), seconds)


def ask_side_by_side(
    askers: Sequence[SlotAsker], parts: Sequence[Sequence[Asked]], told: Told
) -> list[list[Said]]:
    """Each asker asks its part in a thread of its own; the answers in the order of what was asked.

    An engine with one thread leaves the other cores idle, and a small model cannot use several:
    engines side by side can.  The native library computes without the interpreter's lock.

    Args:
        askers: one or more.
        parts: what each asks.
        told: called with every answer, by one thread at a time.

    Raises:
        NativeError: the native library failed; the others are stopped.
    """
    lock = Lock()

    def ask(asker: SlotAsker, part: Sequence[Asked]) -> list[Said]:
        said: dict[int, Said] = {}
        for place, one in asker.ask(part):
            said[place] = one
            with lock:
                told(part[place], one)
        return [said[place] for place in range(len(part))]

    with ThreadPoolExecutor(len(askers)) as pool:
        futures = [pool.submit(ask, *pair) for pair in zip(askers, parts, strict=True)]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:  # KeyboardInterrupt too: threads would compute to their end
            for asker in askers:
                asker.stop()
            raise
    return [future.result() for future in futures]
