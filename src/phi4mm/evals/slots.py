"""Many items asked at the same time, in the slots of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from phi4mm.engine.context_plan import ContextPlan
from phi4mm.engine.engine import AdapterChoice, Engine
from phi4mm.engine.event import Event
from phi4mm.engine.parameters import SamplingParams
from phi4mm.errors import InputError
from phi4mm.evals.manifest import Item
from phi4mm.evals.request import messages_of
from phi4mm.progress import Progress, counter
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
        error: why there is no answer; None if there is.
    """

    text: str
    error: str | None = None


@dataclass(slots=True)
class _Running:
    place: int
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

    def ask(self, asked: Sequence[Asked], progress: Progress | None = None) -> list[Said]:
        """Answers, in the order of what was asked; what cannot be asked is an answer too.

        Raises:
            NativeError: the native library failed.
        """
        said: dict[int, Said] = {}
        running: dict[int, _Running] = {}
        advance = counter(len(asked), progress)
        waiting = enumerate(asked)
        while len(said) < len(asked):
            while len(running) < self._n_slots and (entry := next(waiting, None)) is not None:
                try:
                    running[self._submit(entry[1])] = _Running(entry[0])
                except InputError as error:
                    said[entry[0]] = Said("", str(error))
                    advance(1)
            for place, text in self._step(running):
                said[place] = Said(text.strip())
                advance(1)
        return [said[place] for place in range(len(asked))]

    def _submit(self, asked: Asked) -> int:
        """Hand an item over; the request's id.

        Raises:
            InputError: it cannot be asked.
        """
        prompt = self._prompts.chat(messages_of(asked.item))
        self._plan.require_fit(prompt.n_tokens)
        sampling = SamplingParams(max_tokens=asked.max_tokens)
        return self._engine.submit(prompt, sampling, asked.adapter)

    def _step(self, running: dict[int, _Running]) -> Iterator[tuple[int, str]]:
        """Compute a little for everyone; the answers that are complete with it."""
        events: list[tuple[int, Event]] = self._engine.step()
        for request_id, event in events:
            running[request_id].texts.append(event.text)
            if event.finish_reason is not None:
                done = running.pop(request_id)
                yield done.place, "".join(done.texts)
