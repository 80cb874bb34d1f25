"""The Python interface: one class that holds a bundle ready to answer."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from os import PathLike
from threading import RLock
from types import TracebackType
from typing import get_args

import numpy as np
import numpy.typing as npt

from phi4mm.engine.context_plan import plan_contexts
from phi4mm.engine.engine import AdapterChoice, Engine
from phi4mm.engine.event import Event
from phi4mm.engine.loading import loaded_engine
from phi4mm.engine.parameters import (
    DEFAULT_ENCODER_CACHE_BYTES,
    EngineParams,
    FlashAttention,
    KVType,
    SamplingParams,
)
from phi4mm.errors import InputError
from phi4mm.media.audio import AudioSource, AudioStream, open_audio
from phi4mm.media.image import ImageSource
from phi4mm.modality import AudioProjection
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.device import NO_OFFLOAD, Offload
from phi4mm.prompt.chunk import Prompt, PromptBuilder
from phi4mm.prompt.medium import mel_params
from phi4mm.prompt.message import Message
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.transcribe.piece import PieceParams
from phi4mm.transcribe.segment import Segment, join_texts
from phi4mm.transcribe.task import TRANSCRIBE, Task
from phi4mm.transcribe.transcriber import Transcriber

Embeddings = npt.NDArray[np.float32]


class Phi4MM:
    """A loaded bundle.

    Use it as a context manager, or call ``close``::

        with Phi4MM("bundle") as model:
            for event in model.generate([user_message("What is this?", images=["cat.png"])]):
                print(event.text, end="")

    One thread at a time uses it; ``cancel`` alone may be called from another.

    Attributes:
        bundle: the files it was loaded from, and what they hold.
        tokenizer: text to ids and back.
        prompts: makes prompts with known token counts, without computing anything.
    """

    def __init__(
        self,
        bundle: str | PathLike[str] | Bundle,
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        offload: Offload = NO_OFFLOAD,
        kv_type: KVType | tuple[KVType, KVType] = "f16",
        flash_attention: FlashAttention = "auto",
        encoder_cache_bytes: int = DEFAULT_ENCODER_CACHE_BYTES,
    ) -> None:
        """Open a bundle and check it.

        Args:
            bundle: its folder, its decoder file, or a ``Bundle`` already open (and then closed
                with this object).
            n_ctx: positions per sequence; None takes 8192, or the model's limit if that is less.
            n_threads: CPU threads; None takes all cores this process may use.
            offload: what goes to accelerators, and to which.
            kv_type: element type of the KV cache; two of them for keys and values.
            flash_attention: the decoder's attention kernel.
            encoder_cache_bytes: bound on embeddings of pictures and clips that are kept for a
                second question about them; 0 keeps none.

        Raises:
            ModelFileError: a file is malformed, missing, or does not belong to the others.
            InputError: a setting is out of range for this model.
        """
        type_k, type_v = (kv_type, kv_type) if isinstance(kv_type, str) else kv_type
        self._params = EngineParams(
            n_ctx=n_ctx,
            n_threads=n_threads,
            offload=offload,
            type_k=type_k,
            type_v=type_v,
            flash_attention=flash_attention,
            encoder_cache_bytes=encoder_cache_bytes,
        )
        with ExitStack() as stack:
            self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
            stack.enter_context(self.bundle)
            self._plan = plan_contexts(self._params, self.bundle.decoder.hparams)
            self.tokenizer = Tokenizer(self.bundle.decoder.file.metadata)
            self.prompts = PromptBuilder(self.bundle, self.tokenizer)
            self._stack = stack.pop_all()
        self._lock = RLock()
        self._is_closed = False

    @property
    def n_ctx(self) -> int:
        """Positions per sequence, prompt and answer together."""
        return self._plan.n_ctx

    def is_long(self, n_tokens: int) -> bool:
        """Whether a sequence of this length is computed with the long RoPE factors."""
        return self._plan.is_long(n_tokens)

    def load(self) -> None:
        """Load the weights and allocate everything a request can need.

        The first request does it otherwise, after its prompt was found to be in order.

        Raises:
            NativeError: the native library cannot load a file, or memory is short.
        """
        with self._in_use():
            pass

    @contextmanager
    def _in_use(self) -> Iterator[Engine]:
        """The engine, for one thread at a time.

        Raises:
            InputError: this object is closed, or another thread computes with it.
        """
        if not self._lock.acquire(blocking=False):
            raise InputError("the model is in use by another thread: wait, or open another one")
        try:
            if self._is_closed:
                raise InputError("the model is closed: open it again")
            yield self._engine
        finally:
            self._lock.release()

    @cached_property
    def _engine(self) -> Engine:
        return self._stack.enter_context(loaded_engine(self.bundle, self._params, self.tokenizer))

    def generate(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None
    ) -> Iterator[Event]:
        """Answer a conversation, step by step.

        The prompt is built and checked at the call; computing starts with the first event.

        Raises:
            InputError: the conversation is malformed or does not suit this bundle.
            MediaError: a picture or clip cannot be used.
            PromptTooLong: it does not fit the context.
        """
        return self._answer(self.prompts.chat(messages), sampling)

    def generate_raw(
        self,
        prompt: str,
        images: Sequence[ImageSource] = (),
        audios: Sequence[AudioSource] = (),
        sampling: SamplingParams | None = None,
    ) -> Iterator[Event]:
        """Continue a raw prompt: special tokens are parsed, ``<|image_1|>`` marks a picture."""
        return self._answer(self.prompts.raw(prompt, images, audios), sampling)

    def _answer(
        self, prompt: Prompt, sampling: SamplingParams | None
    ) -> Generator[Event, None, None]:
        self._plan.require_fit(prompt.n_tokens)
        with self._in_use() as engine:
            return self._guarded(engine.generate(prompt, sampling or SamplingParams()))

    def _guarded(self, events: Generator[Event, None, None]) -> Generator[Event, None, None]:
        """The same events, each computed under the guard."""
        try:
            while True:
                with self._in_use():
                    event = next(events, None)
                if event is None:
                    return
                yield event
        finally:
            with self._lock:
                events.close()

    def logits(
        self,
        prompt: str,
        images: Sequence[ImageSource] = (),
        audios: Sequence[AudioSource] = (),
        adapter: AdapterChoice = "auto",
    ) -> npt.NDArray[np.float32]:
        """Logits ``(n_tokens, n_vocab)`` after every position of a raw prompt.

        Args:
            prompt: special tokens are parsed; ``<|image_1|>`` and ``<|audio_1|>`` mark the media.
            images: one for each picture marker.
            audios: one for each clip marker.
            adapter: "auto" for the one the media ask for; None, "vision" or "speech" to force.
        """
        built = self.prompts.raw(prompt, images, audios)
        self._plan.require_fit(built.n_tokens)
        with self._in_use() as engine:
            return engine.logits(built, adapter)

    def transcribe(
        self, source: AudioSource, task: Task = TRANSCRIBE, pieces: PieceParams | None = None
    ) -> str:
        """The words spoken in a recording of any length; "" where nobody speaks.

        Args:
            source: the recording.
            task: ``translate_to("de")`` gives them in German.
            pieces: how long the pieces are that the model hears at once.

        Raises:
            InputError: this bundle has no audio encoder.
            MediaError: the recording cannot be used.
        """
        segments = self.transcribe_segments(source, task, pieces)
        return join_texts(segment.text for segment in segments)

    def transcribe_segments(
        self, source: AudioSource, task: Task = TRANSCRIBE, pieces: PieceParams | None = None
    ) -> Iterator[Segment]:
        """What ``transcribe`` gives, with times, as it is heard; memory does not grow."""
        with self.open_audio(source) as audio:
            yield from Transcriber(self._events, task, pieces).segments(audio)

    def open_audio(self, source: AudioSource) -> AbstractContextManager[AudioStream]:
        """Sound of any length, decoded block by block at a rate this bundle takes.

        Raises:
            InputError: this bundle has no audio encoder.
        """
        if self.bundle.audio is None:
            raise InputError("this model has no audio encoder: give its mmproj file")
        return open_audio(source, mel_params(self.bundle.audio))

    def _events(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> Generator[Event, None, None]:
        yield from self._answer(self.prompts.chat(messages).asked_once(), sampling)

    def encode_image(self, source: ImageSource) -> Embeddings:
        """Embeddings ``(n_tokens, n_embd)`` of a picture, after the projector."""
        with self._in_use() as engine:
            return engine.encode(self.prompts.picture(source))

    def encode_audio(
        self, source: AudioSource, projection: AudioProjection = "speech"
    ) -> Embeddings:
        """Embeddings ``(n_tokens, n_embd)`` of a clip, after the projector asked for."""
        if projection not in get_args(AudioProjection):
            raise InputError(f"projection is {projection!r}: use 'speech' or 'vision'")
        with self._in_use() as engine:
            return engine.encode(self.prompts.sound(source), projection)

    def cancel(self) -> None:
        """Stop the running request from another thread: its iterator raises ``Cancelled``.

        While the weights are loaded there is nothing to stop.
        """
        if (engine := self.__dict__.get("_engine")) is not None:
            engine.interrupt()

    def close(self) -> None:
        """Free everything native; stops what another thread computes.  Twice does nothing."""
        self.cancel()
        with self._lock:
            self._is_closed = True
            self._stack.close()

    def __enter__(self) -> Phi4MM:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
