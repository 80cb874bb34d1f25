"""From a bundle to an engine that is ready to answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from phi4mm.engine.context_plan import plan_contexts
from phi4mm.engine.decoder import Decoder
from phi4mm.engine.encoding import MediaEncoder
from phi4mm.engine.engine import Engine
from phi4mm.engine.parameters import EngineParams
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.abort import AbortFlag
from phi4mm.native.library import load
from phi4mm.prompt.tokenizer import Tokenizer


@contextmanager
def loaded_engine(bundle: Bundle, params: EngineParams, tokenizer: Tokenizer) -> Iterator[Engine]:
    """Load the weights and allocate everything that requests can need; free it at the end.

    Raises:
        InputError: a setting is out of range for this model.
        NativeError: the native library cannot load a file, or memory is short.
    """
    plan = plan_contexts(params, bundle.decoder.hparams)
    abort_flag = AbortFlag(load())
    with ExitStack() as stack:
        encoder = stack.enter_context(closing(MediaEncoder(bundle, params, abort_flag)))
        decoder = stack.enter_context(closing(Decoder(bundle, params, plan, abort_flag)))
        yield Engine(decoder, encoder, tokenizer, plan, params, abort_flag)
