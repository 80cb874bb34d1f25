"""A chat without a terminal: what was said, what is attached, what the model is asked.

It keeps the conversation right whatever happens: a refused question changes nothing, a stopped
answer is kept as far as it got.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from phi4mm.chat.attachment import Attachment, open_attachments
from phi4mm.chat.savefile import load_conversation, save_conversation
from phi4mm.engine.event import Event
from phi4mm.engine.parameters import SamplingParams
from phi4mm.errors import InputError, PromptTooLong
from phi4mm.media.sniff import MediaKind
from phi4mm.modality import Adapter, Mode
from phi4mm.prompt.chunk import PromptBuilder
from phi4mm.prompt.conversation import Conversation
from phi4mm.prompt.message import Message, TextPart

ContextShift = Literal["off", "oldest"]
_MAX_ROOM = 256  # positions that "oldest" keeps free for an answer, or an eighth of the context


class Model(Protocol):
    """What a session needs of ``Phi4MM``."""

    prompts: PromptBuilder

    @property
    def n_ctx(self) -> int:
        """Positions for prompt and answer together."""

    def is_long(self, n_tokens: int) -> bool:
        """Whether a sequence of this length uses the long RoPE factors."""

    def generate(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None
    ) -> Iterator[Event]:
        """Answer a conversation."""

    def cancel(self) -> None:
        """Stop the running answer."""


Run = Callable[[Iterator[Event], Callable[[], None]], Generator[Event, None, None]]
"""Runs an answer so that it can be stopped: its events, and what stops it."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The last question's numbers.

    Attributes:
        event: the last one seen of its answer.
        adapter: that computed it.
        is_long: whether it ended with the long RoPE factors.
        n_recomputed: tokens of this conversation that were computed a second time because it
            outgrew the original context and the factors changed, in this answer or before it.
    """

    event: Event
    adapter: Adapter | None
    is_long: bool
    n_recomputed: int

    @property
    def n_tokens(self) -> int:
        """Positions taken in the context."""
        return self.event.usage.n_prompt + self.event.usage.n_generated


class Session:
    """One chat with one model.

    Args:
        model: answers.
        run: makes an answer that can be stopped.
        sampling: how to answer.
        context_shift: what to do when the context is full: "off" refuses the question, "oldest"
            drops the oldest turns.

    Attributes:
        conversation: what was said.
        pending: attached to the next question.
        sampling: may be changed between questions.
        context_shift: may be changed too.
        last: numbers of this conversation's last answer, or None.
    """

    def __init__(
        self,
        model: Model,
        run: Run,
        sampling: SamplingParams,
        context_shift: ContextShift = "off",
    ) -> None:
        self._model = model
        self._run = run
        self.sampling = sampling
        self.context_shift = context_shift
        self.conversation = Conversation()
        self.pending: tuple[Attachment, ...] = ()
        self.last: Exchange | None = None
        self._computed_mode: Mode | None = None

    @property
    def n_ctx(self) -> int:
        """Positions of the context."""
        return self._model.n_ctx

    def attach(
        self, path: Path, kind: MediaKind | None = None, pages: Sequence[int] | None = None
    ) -> list[Attachment]:
        """Attach a file to the next question.

        Raises:
            InputError: the file, or this bundle with it, cannot be used.
        """
        attached = open_attachments(path, self._model.prompts, kind, pages)
        self.pending += tuple(attached)
        return attached

    def ask(self, text: str, notify: Callable[[str], None]) -> Iterator[Event]:
        """Ask a question with everything attached, and yield the answer.

        Args:
            text: the question; may be empty where something is attached.
            notify: gets lines that a person should see before the answer.

        Raises:
            InputError: the question cannot be asked; the session is as it was before.
        """
        words = (TextPart(text),) if text else ()
        question = Message("user", (*(item.part for item in self.pending), *words))
        names = tuple(item.name for item in self.pending)
        asked = self.conversation.asking(question, names)
        return self._answer(asked, notify, still_pending=())

    def ask_again(self, notify: Callable[[str], None]) -> Iterator[Event]:
        """Answer the last question anew.

        Raises:
            InputError: nothing was asked yet.
        """
        return self._answer(self.conversation.unanswered(), notify, still_pending=self.pending)

    def undo(self) -> None:
        """Take back the last question and its answer.

        Raises:
            InputError: nothing was asked yet.
        """
        self.conversation = self.conversation.undone()

    def clear(self) -> None:
        """Forget all turns and attachments; the system message stays."""
        self.conversation = self.conversation.cleared()
        self.pending, self.last = (), None

    def save(self, path: Path) -> None:
        """Write the conversation, with its media, into one file.

        Raises:
            InputError: it cannot be written, or would replace another kind of file.
        """
        save_conversation(path, self.conversation)

    def load(self, path: Path) -> None:
        """Go on with a saved conversation instead of this one.

        Raises:
            InputError: the file is no saved conversation, or this bundle cannot take its media.
        """
        loaded = load_conversation(path)
        try:
            if loaded.turns:
                self._model.prompts.chat(loaded.messages)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        self.conversation, self.pending, self.last = loaded, (), None

    def _answer(
        self,
        asked: Conversation,
        notify: Callable[[str], None],
        still_pending: tuple[Attachment, ...],
    ) -> Generator[Event, None, None]:
        asked = self._shifted(asked, notify)
        try:
            events = self._model.generate(asked.messages, self.sampling)
        except PromptTooLong as error:
            raise InputError(
                f"the context is full: this needs {error.n_tokens} tokens and it holds "
                f"{error.n_ctx}; /clear or /undo, /set context-shift=oldest, or a larger -c"
            ) from error
        if (note := self._switch_note(asked)) is not None:
            notify(note)
        self._computed_mode = asked.mode
        before = self.last if len(asked.turns) > 1 else None
        texts: list[str] = []
        with closing(self._run(events, self._model.cancel)) as running:
            try:
                for event in running:
                    texts.append(event.text)
                    self.last = self._exchange(event, asked, before)
                    yield event
            finally:
                if texts:
                    self.conversation = asked.answered("".join(texts))
                    self.pending = still_pending

    def _exchange(self, event: Event, asked: Conversation, before: Exchange | None) -> Exchange:
        usage, is_long = event.usage, self._model.is_long
        n_recomputed = usage.n_refilled
        if before is not None and not before.is_long and is_long(usage.n_prompt):
            n_recomputed = max(0, before.n_tokens - usage.n_cached)
        ended_long = is_long(usage.n_prompt + usage.n_generated)
        return Exchange(event, asked.mode.adapter, ended_long, n_recomputed)

    def _shifted(self, asked: Conversation, notify: Callable[[str], None]) -> Conversation:
        """The conversation without the oldest turns, as many as leave room for an answer."""
        if self.context_shift == "off":
            return asked
        limit = self.n_ctx - min(_MAX_ROOM, self.n_ctx // 8)
        before = n_tokens = self._model.prompts.chat(asked.messages).n_tokens
        kept = asked
        while n_tokens > limit and len(kept.turns) > 1:
            kept = kept.without_oldest()
            n_tokens = self._model.prompts.chat(kept.messages).n_tokens
        if (n_dropped := len(asked.turns) - len(kept.turns)) > 0:
            notify(
                f"the context is full ({before} of {self.n_ctx} tokens): dropped the oldest "
                f"{n_dropped} turn{'s' if n_dropped > 1 else ''}, {n_tokens} tokens remain and are "
                "computed again"
            )
        return kept

    def _switch_note(self, asked: Conversation) -> str | None:
        """What to say where other media than before change how everything is computed."""
        before, now = self._computed_mode, asked.mode
        if before is None or before.adapter == now.adapter or len(asked.turns) < 2:
            return None
        return (
            f"from {before.adapter or 'no'} to {now.adapter or 'no'} adapter, as the media of this "
            "conversation ask: what was said before is computed again"
        )
