"""From rows of logits to the events of one answer."""

from __future__ import annotations

import numpy as np

from phi4mm.engine.event import Event, FinishReason, TokenLogprob
from phi4mm.engine.grammar import SchemaMask
from phi4mm.engine.logit_stage import Logits
from phi4mm.engine.sampler import Sampler
from phi4mm.engine.sequence import Sequence
from phi4mm.engine.stop_string import StopStrings
from phi4mm.errors import SettingError
from phi4mm.prompt.tokenizer import Detokenizer, Tokenizer


class Answer:
    """Draws the tokens of one sequence, and tells their text and when they end.

    Args:
        sequence: what the tokens are appended to.
        tokenizer: for text and stop tokens.
        n_ctx: most tokens of prompt and answer together.
        mask: of the schema that the answer must fit; None where it is free.

    Raises:
        SettingError: ``logit_bias`` names a token that the vocabulary does not have.
    """

    def __init__(
        self,
        sequence: Sequence,
        tokenizer: Tokenizer,
        n_ctx: int,
        mask: SchemaMask | None = None,
    ) -> None:
        for token_id, _ in sequence.sampling.logit_bias:
            if token_id >= tokenizer.n_vocab:
                raise SettingError(
                    "logit_bias",
                    f"names token {token_id}: the last one is {tokenizer.n_vocab - 1}",
                )
        self._sequence = sequence
        self._stop_ids = tokenizer.stop_ids
        self._n_ctx = n_ctx
        self._mask = mask
        self._sampler = Sampler(sequence.sampling, sequence.prompt_ids, mask)
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(sequence.sampling.stop)

    def next_event(self, logits: Logits) -> Event:
        """Draw a token from the logits ``(n_vocab,)`` after the sequence's last position."""
        sequence = self._sequence
        token_id = self._sampler.sample(logits)
        sequence.append(token_id)
        text = ""
        if token_id not in self._stop_ids:
            text = self._stops.push(self._detokenizer.push(token_id))
        finish_reason = self._finish_reason()
        if finish_reason is not None:
            text += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        return Event(
            text,
            (token_id,),
            sequence.usage,
            sequence.timings,
            finish_reason,
            logprobs=self._logprobs(logits, token_id),
        )

    def _finish_reason(self) -> FinishReason | None:
        sequence = self._sequence
        if self._mask is not None and self._mask.is_broken:
            return "length"  # the text does not fit the schema yet
        if sequence.generated[-1] in self._stop_ids or self._stops.is_found:
            return "stop"
        if len(sequence.generated) == sequence.sampling.max_tokens:
            return "length"
        # the token just generated would need a position of its own
        return "length" if sequence.n_tokens > self._n_ctx else None

    def _logprobs(self, logits: Logits, token_id: int) -> tuple[TokenLogprob, ...]:
        n_top = self._sequence.sampling.top_logprobs
        if n_top is None:
            return ()
        wide = logits.astype(np.float64)
        wide -= wide.max()
        wide -= np.log(np.exp(wide).sum())
        best = np.argpartition(-wide, n_top)[:n_top]
        best = best[np.argsort(-wide[best], kind="stable")]
        top = tuple((int(id_), float(wide[id_])) for id_ in best)
        return (TokenLogprob(token_id, float(wide[token_id]), top),)
