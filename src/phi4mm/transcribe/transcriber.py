"""Hears a recording piece by piece and yields timed text."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from phi4mm.engine.event import Event
from phi4mm.engine.parameters import SamplingParams
from phi4mm.media.audio import AudioStream
from phi4mm.prompt.message import Message, user_message
from phi4mm.transcribe.guard import RepeatWatch, is_refusal, strip_lead_in
from phi4mm.transcribe.piece import Piece, PieceParams, cut_pieces, split_piece
from phi4mm.transcribe.seam import join_at_seam
from phi4mm.transcribe.segment import Note, Segment
from phi4mm.transcribe.task import TRANSCRIBE, Task

Generate = Callable[[Sequence[Message], SamplingParams], Generator[Event, None, None]]
"""Answers a conversation; closing the generator stops the work."""

# Fast speech makes some 8 tokens in a second, and 20 where nearly each character is one.
_TOKENS_PER_S, _TOKENS_ANYWAY = 25, 32
_MIN_SPLIT_S = 6.0  # a repeat in less than this is not heard again in two halves


class Transcriber:
    """Transcribes or translates recordings of any length.

    Args:
        generate: answers one piece.
        task: what to do with speech.
        pieces: where to cut.
    """

    def __init__(
        self, generate: Generate, task: Task = TRANSCRIBE, pieces: PieceParams | None = None
    ) -> None:
        self._generate = generate
        self._task = task
        self._pieces = pieces

    def segments(self, audio: AudioStream) -> Generator[Segment, None, None]:
        """The speech of a recording, one segment at a time, in order.

        Raises:
            MediaError: the recording is damaged.
            Cancelled: the work was stopped.
            NativeError: the native library failed.
        """
        unfinished: Segment | None = None
        for piece in cut_pieces(audio, self._pieces):
            for segment, is_cut_short in self._hear(piece):
                if unfinished is not None:
                    left, right = join_at_seam(unfinished.text, segment.text)
                    yield replace(unfinished, text=left)
                    segment = replace(segment, text=right)
                unfinished = segment if is_cut_short else None
                if unfinished is None:
                    yield segment
        if unfinished is not None:
            yield unfinished

    def _hear(self, piece: Piece) -> Iterator[tuple[Segment, bool]]:
        """A piece's segment, and whether it ends within speech.

        A piece that sends the model into a repeat is heard once more in two halves, since the words
        behind the repeat would be lost.
        """
        segment = self._segment(piece)
        if segment.note != "repetition" or piece.end_s - piece.start_s < _MIN_SPLIT_S:
            yield segment, piece.is_cut_short
            return
        for half in split_piece(piece):
            yield self._segment(half), half.is_cut_short

    def _segment(self, piece: Piece) -> Segment:
        text, note = self._answer(piece)
        text = "".join(c for c in " ".join(text.split()) if c.isprintable())
        if is_refusal(text):
            text, note = "", "refusal"
        return Segment(piece.start_s, piece.end_s, strip_lead_in(text), note)

    def _answer(self, piece: Piece) -> tuple[str, Note | None]:
        seconds = len(piece.samples) / piece.rate
        sampling = SamplingParams(max_tokens=_TOKENS_ANYWAY + round(_TOKENS_PER_S * seconds))
        message = user_message(self._task.prompt, audios=[(piece.samples, piece.rate)])
        watch, texts = RepeatWatch(), list[str]()
        with closing(self._generate([message], sampling)) as events:
            for event in events:
                texts.append(event.text)
                for id_ in event.token_ids:
                    if (n_copies := watch.push(id_)) is not None:
                        return "".join(texts[:-n_copies]), "repetition"
        return "".join(texts), "length" if event.finish_reason == "length" else None
