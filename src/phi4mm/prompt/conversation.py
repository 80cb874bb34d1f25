"""A conversation as front ends keep it: a system message, and turns of question and answer.

It is a value: every change gives a new one, so that a failed answer leaves the old one as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from phi4mm.errors import InputError
from phi4mm.modality import Mode, mode_of
from phi4mm.prompt.message import AudioPart, ImagePart, Message, TextPart, require_unicode


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer.

    Attributes:
        question: the user's message.
        answer: the model's words, perhaps stopped early; None while there is none.
        names: what the question's media are called, in order; may be left empty.

    Raises:
        InputError: the answer is not valid Unicode.
    """

    question: Message
    answer: str | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.answer is not None:
            require_unicode(self.answer)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said so far.

    Attributes:
        system: the system message's text, or None.
        turns: from the first to the last; only the last may lack its answer.

    Raises:
        InputError: the system message is not valid Unicode.
    """

    system: str | None = None
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        if self.system is not None:
            require_unicode(self.system)

    @property
    def messages(self) -> list[Message]:
        """The messages for the model, in order."""
        return list(self._messages())

    def _messages(self) -> Iterator[Message]:
        if self.system is not None:
            yield Message("system", (TextPart(self.system),))
        for turn in self.turns:
            yield turn.question
            if turn.answer is not None:
                yield Message("assistant", (TextPart(turn.answer),))

    @property
    def mode(self) -> Mode:
        """The adapter and audio projection that its media ask for."""
        parts = [part for turn in self.turns for part in turn.question.parts]
        return mode_of(
            n_images=sum(isinstance(part, ImagePart) for part in parts),
            n_audios=sum(isinstance(part, AudioPart) for part in parts),
        )

    def with_system(self, text: str | None) -> Conversation:
        """The same turns under another system message, or none."""
        return replace(self, system=text)

    def asking(self, question: Message, names: tuple[str, ...] = ()) -> Conversation:
        """One question more, which has no answer yet.

        Raises:
            InputError: the last question has no answer.
        """
        if self.turns and self.turns[-1].answer is None:
            raise InputError("the last question has no answer yet")
        return replace(self, turns=(*self.turns, Turn(question, names=names)))

    def answered(self, text: str) -> Conversation:
        """The last question with its answer.

        Raises:
            InputError: there is no question.
        """
        return self._with_last(replace(self._last, answer=text))

    def unanswered(self) -> Conversation:
        """The last question as if it had just been asked.

        Raises:
            InputError: there is no question.
        """
        return self._with_last(replace(self._last, answer=None))

    def undone(self) -> Conversation:
        """Without the last turn.

        Raises:
            InputError: there is none.
        """
        _ = self._last
        return replace(self, turns=self.turns[:-1])

    def without_oldest(self) -> Conversation:
        """Without the first turn; the last one always stays.

        Raises:
            InputError: there is only one.
        """
        if len(self.turns) < 2:
            raise InputError("there is no older turn to drop")
        return replace(self, turns=self.turns[1:])

    def cleared(self) -> Conversation:
        """The system message alone."""
        return replace(self, turns=())

    @property
    def _last(self) -> Turn:
        if not self.turns:
            raise InputError("nothing has been asked yet")
        return self.turns[-1]

    def _with_last(self, turn: Turn) -> Conversation:
        return replace(self, turns=(*self.turns[:-1], turn))
