"""Computes conversations the way a request is computed, for an observer to see.

The decoder gets soft tokens of pictures and clips, and the adapter that the media ask for.  Every
token of text asks for logits, since any may be what the model has to say; soft tokens never do, so
the last layer's feed-forward matrices and the output matrix don't see them, as in a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from phi4mm.encoders.steps import finish
from phi4mm.engine.context_plan import plan_contexts
from phi4mm.engine.encoding import MediaEncoder
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError
from phi4mm.modality import Adapter as AdapterName
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.abort import AbortFlag
from phi4mm.native.batch import Batch, Inputs
from phi4mm.native.library import load
from phi4mm.native.llama import Adapter, Context, Model
from phi4mm.native.params import ContextParams
from phi4mm.native.product_observer import ProductObserver
from phi4mm.progress import Advance
from phi4mm.prompt.chunk import Prompt, PromptBuilder, TextChunk
from phi4mm.prompt.medium import Sound
from phi4mm.prompt.message import Message, TextPart, user_message
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.quantize.calibration import Conversation

_END = "<|end|>"

Ids = npt.NDArray[np.int32]
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PlannedConversation:
    """A conversation whose media were found to be in order.

    Attributes:
        conversation: the conversation.
        adapter: the adapter its media ask for.
        n_tokens: its length.
        n_answer: of these, the answer's, the token that ends it among them.
    """

    conversation: Conversation
    adapter: AdapterName | None
    n_tokens: int
    n_answer: int


class ConversationRun:
    """Prompts of conversations, and what computes them; a context manager that owns the encoders.

    Args:
        bundle: the files.
        params: threads, devices, types of the cache.
        n_batch: rows computed at once.
    """

    def __init__(self, bundle: Bundle, params: EngineParams, n_batch: int) -> None:
        self._bundle = bundle
        self._params = params
        self._n_batch = n_batch
        self._tokenizer = Tokenizer(bundle.decoder.file.metadata)
        self._prompts = PromptBuilder(bundle, self._tokenizer)
        self._stack = ExitStack()

    def __enter__(self) -> ConversationRun:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @cached_property
    def _encoder(self) -> MediaEncoder:
        """Made when the first medium needs it; keeps what it encoded for the next pass."""
        encoder = MediaEncoder(self._bundle, self._params, AbortFlag(load()))
        return self._stack.enter_context(closing(encoder))

    def plan(self, conversations: Sequence[Conversation]) -> list[PlannedConversation]:
        """Decode all media once, so that what is wrong is found before anything is computed.

        Raises:
            InputError: a medium cannot be used, or a conversation is too long for the model.
        """
        return [self._plan(conversation) for conversation in conversations]

    def _plan(self, conversation: Conversation) -> PlannedConversation:
        prompt = self._prompt(conversation)
        n_max = self._bundle.decoder.hparams.n_ctx_train
        if prompt.n_tokens > n_max:
            raise InputError(
                f"{conversation.name}: has {prompt.n_tokens} tokens, the model takes {n_max}"
            )
        n_answer = len(self._answer_ids(conversation))
        return PlannedConversation(conversation, prompt.mode.adapter, prompt.n_tokens, n_answer)

    def _prompt(self, conversation: Conversation) -> Prompt:
        try:
            prompt = self._prompts.chat(_messages(conversation))
        except InputError as error:
            raise InputError(f"{conversation.name}: {error}") from None
        ids = self._answer_ids(conversation)
        return Prompt((*prompt.chunks, TextChunk(ids))) if ids else prompt

    def _answer_ids(self, conversation: Conversation) -> tuple[int, ...]:
        """The answer and the token that ends it; empty without an answer."""
        if conversation.answer is None:
            return ()
        return (*self._tokenizer.encode(conversation.answer), self._tokenizer.special_id(_END))

    def compute(
        self,
        model: Model,
        observer: ProductObserver,
        planned: Sequence[PlannedConversation],
        advance: Advance,
    ) -> None:
        """Compute conversations, each from an empty cache.

        Args:
            model: the decoder.
            observer: sees what its matrices are multiplied with.
            planned: from ``plan``.
            advance: told of every piece.
        """
        for _, _, batch in self._decode(model, planned, observer):
            observer.raise_failure()
            advance(batch.n_rows)

    def score(
        self, model: Model, planned: Sequence[PlannedConversation], advance: Advance
    ) -> Iterator[tuple[Rows, Ids]]:
        """What a decoder gives the answers' tokens, the token that ends each among them.

        Args:
            model: the decoder, which may be another quantisation of the bundle's.
            planned: from ``plan``, each with an answer.
            advance: told of every piece.

        Yields:
            Logits (n, n_vocab), and the tokens that really come, (n,).
        """
        for item, context, batch in self._decode(model, planned):
            ids = self._answer_ids(item.conversation)
            first = item.n_tokens - len(ids) - 1  # the position that foretells the answer's first
            rows = np.flatnonzero(
                (batch.positions >= first) & (batch.positions < item.n_tokens - 1)
            )
            if len(rows):
                places = batch.positions[rows] - first
                yield context.logits(rows.tolist()), np.array(ids, np.int32)[places]
            advance(batch.n_rows)

    def _decode(
        self,
        model: Model,
        planned: Sequence[PlannedConversation],
        observer: ProductObserver | None = None,
    ) -> Iterator[tuple[PlannedConversation, Context, Batch]]:
        """Every batch of every conversation, after it was computed."""
        with ExitStack() as stack:
            adapters = {
                name: stack.enter_context(Adapter(model, self._bundle.adapters[name].path))
                for name in {item.adapter for item in planned}
                if name is not None and name != self._bundle.decoder.hparams.merged_adapter
            }
            for item in planned:
                chosen = [
                    (adapter, 1.0) for name, adapter in adapters.items() if name == item.adapter
                ]
                params = self._context_params(item.n_tokens)
                with Context(model, params, observer=observer) as context:
                    context.set_adapters(chosen)
                    for batch in self._batches(self._prompt(item.conversation)):
                        context.decode(batch)
                        yield item, context, batch

    def _batches(self, prompt: Prompt) -> Iterator[Batch]:
        start = 0
        for chunk in prompt.chunks:
            logits: Literal["all", "none"] = "none"
            if isinstance(chunk, TextChunk):
                inputs: Inputs = np.array(chunk.ids, np.int32)
                logits = "all"
            else:
                is_sound = isinstance(chunk, Sound)
                projection = prompt.mode.audio_projection if is_sound else None
                inputs = finish(self._encoder.steps(chunk, projection))
            for first in range(0, len(inputs), self._n_batch):
                piece = inputs[first : first + self._n_batch]
                yield Batch.of_sequence(piece, start=start, logits=logits)
                start += len(piece)

    def _context_params(self, n_tokens: int) -> ContextParams:
        """A context whose RoPE factors suit the length, as a request's would."""
        plan = plan_contexts(EngineParams(n_ctx=n_tokens), self._bundle.decoder.hparams)
        n_ctx = plan.n_long or plan.n_short
        n_batch = min(self._n_batch, n_ctx)
        return ContextParams(
            n_ctx,
            self._params.threads,
            self._params.threads,
            n_batch=n_batch,
            n_ubatch=n_batch,
            n_outputs_max=n_batch,
            type_k=self._params.type_k,
            type_v=self._params.type_v,
            flash_attn=self._params.flash_attention,
        )


def _messages(conversation: Conversation) -> list[Message]:
    """The system message, if there is one, and the user's."""
    asked = user_message(conversation.prompt, conversation.images, conversation.audios)
    if not conversation.system and conversation.tools is None:
        return [asked]
    parts = (TextPart(conversation.system),) if conversation.system else ()
    return [Message("system", parts, tools=conversation.tools), asked]
