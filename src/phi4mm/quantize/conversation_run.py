"""Computes conversations the way a request is computed, for an observer to see.

The decoder gets soft tokens of pictures and clips, and the adapter that the media ask for.  Every
token of text asks for logits, since any may be what the model has to say; soft tokens never do, so
the last layer's feed-forward matrices and the output matrix don't see them, as in a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Literal

import numpy as np

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
from phi4mm.prompt.message import user_message
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.quantize.calibration import Conversation

_END = "<|end|>"


@dataclass(frozen=True, slots=True)
class PlannedConversation:
    """A conversation whose media were found to be in order.

    Attributes:
        conversation: the conversation.
        adapter: the adapter its media ask for.
        n_tokens: its length.
    """

    conversation: Conversation
    adapter: AdapterName | None
    n_tokens: int


class ConversationRun:
    """Prompts of conversations, and what computes them.

    Args:
        bundle: the files.
        params: threads, devices.
        n_batch: rows computed at once.
    """

    def __init__(self, bundle: Bundle, params: EngineParams, n_batch: int) -> None:
        self._bundle = bundle
        self._params = params
        self._n_batch = n_batch
        self._tokenizer = Tokenizer(bundle.decoder.file.metadata)
        self._prompts = PromptBuilder(bundle, self._tokenizer)

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
        return PlannedConversation(conversation, prompt.mode.adapter, prompt.n_tokens)

    def _prompt(self, conversation: Conversation) -> Prompt:
        message = user_message(conversation.prompt, conversation.images, conversation.audios)
        try:
            prompt = self._prompts.chat([message])
        except InputError as error:
            raise InputError(f"{conversation.name}: {error}") from None
        if conversation.answer is None:
            return prompt
        ids = (*self._tokenizer.encode(conversation.answer), self._tokenizer.special_id(_END))
        return Prompt((*prompt.chunks, TextChunk(ids)))

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
        with ExitStack() as stack:
            encoder = stack.enter_context(
                closing(MediaEncoder(self._bundle, self._params, AbortFlag(load())))
            )
            adapters = {
                name: stack.enter_context(Adapter(model, self._bundle.adapters[name].path))
                for name in {item.adapter for item in planned}
                if name is not None and name != self._bundle.decoder.hparams.merged_adapter
            }
            for item in planned:
                prompt = self._prompt(item.conversation)
                chosen = [
                    (adapter, 1.0) for name, adapter in adapters.items() if name == item.adapter
                ]
                with Context(model, self._context_params(item.n_tokens), observer=observer) as c:
                    c.set_adapters(chosen)
                    for batch in self._batches(prompt, encoder):
                        c.decode(batch)
                        observer.raise_failure()
                        advance(batch.n_rows)

    def _batches(self, prompt: Prompt, encoder: MediaEncoder) -> Iterator[Batch]:
        start = 0
        for chunk in prompt.chunks:
            logits: Literal["all", "none"] = "none"
            if isinstance(chunk, TextChunk):
                inputs: Inputs = np.array(chunk.ids, np.int32)
                logits = "all"
            else:
                is_sound = isinstance(chunk, Sound)
                projection = prompt.mode.audio_projection if is_sound else None
                inputs = finish(encoder.steps(chunk, projection))
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
        )
