"""How large the decoder's contexts must be: resolved once from the weights and the wish."""

from __future__ import annotations

from dataclasses import dataclass

from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import PromptTooLong, SettingError
from phi4mm.modelfile.hparams import DecoderHParams

DEFAULT_N_CTX = 8192
# libllama rounds the size per sequence up to a multiple of this, and chooses the RoPE factors by
# the rounded size.
_CONTEXT_STEP = 256


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """Sizes per sequence, in positions.

    Attributes:
        n_ctx: the limit for prompt and answer together.
        n_short: size of the context with the short RoPE factors.
        n_long: size of the context with the long ones; None if no sequence can get that long.
    """

    n_ctx: int
    n_short: int
    n_long: int | None

    def is_long(self, n_tokens: int) -> bool:
        """Whether a sequence of this many tokens is computed with the long factors."""
        return n_tokens > self.n_short

    def require_fit(self, n_tokens: int) -> None:
        """Refuse a prompt that no context can hold.

        Raises:
            PromptTooLong: with the numbers.
        """
        if n_tokens > self.n_ctx:
            raise PromptTooLong(n_tokens, self.n_ctx)


def plan_contexts(params: EngineParams, hparams: DecoderHParams) -> ContextPlan:
    """Resolve the context sizes.

    The reference uses the short factors while a sequence fits the original context and the long
    ones beyond (docs/model.md, "RoPE"); libllama fixes them per context, so there are two.

    Raises:
        SettingError: ``n_ctx`` is beyond what the model was trained for, or the original context is
            not one that libllama can represent.
    """
    n_ctx = params.n_ctx or min(DEFAULT_N_CTX, hparams.n_ctx_train)
    if n_ctx > hparams.n_ctx_train:
        raise SettingError("n_ctx", f"is {n_ctx}: this model was trained for {hparams.n_ctx_train}")
    if n_ctx <= hparams.n_ctx_orig:
        return ContextPlan(n_ctx, n_short=n_ctx, n_long=None)
    if hparams.n_ctx_orig % _CONTEXT_STEP:
        raise SettingError(
            "n_ctx",
            f"is {n_ctx}: beyond the original context of {hparams.n_ctx_orig} this needs one that "
            f"is a multiple of {_CONTEXT_STEP}",
        )
    return ContextPlan(n_ctx, n_short=hparams.n_ctx_orig, n_long=n_ctx)
