"""Answers that must fit a JSON schema: which tokens may come next."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from phi4mm.engine.logit_stage import Logits
from phi4mm.errors import InputError
from phi4mm.prompt.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

# Free blanks would let a model go on with blanks for ever.
_LAYOUT: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


class SchemaMask:
    """Rules out every token that cannot go on to a text of the schema."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def apply(self, logits: Logits) -> None:
        """Set the logits of other tokens to minus infinity."""
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(words, bitorder="little")[: len(logits)]
        logits[: len(allowed)][allowed == 0] = -np.inf
        logits[len(allowed) :] = -np.inf

    def accept(self, token_id: int) -> None:
        """Go on behind the token."""
        self._matcher.consume_token(token_id)

    @property
    def is_broken(self) -> bool:
        """Whether the schema proved too complex to go on: then stop tokens are all it lets pass."""
        return bool(self._matcher.is_error())


class SchemaCompiler:
    """Makes masks for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def compile(self, schema: str) -> SchemaMask:
        """The mask of a JSON schema.

        Args:
            schema: JSON text.

        Raises:
            InputError: it is no JSON schema, uses what is not supported, or nothing fits it.
        """
        from llguidance import LLMatcher  # only here: most answers are free

        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_LAYOUT)
        except ValueError as error:
            raise InputError(f"the JSON schema cannot be used: {_one_line(str(error))}") from None
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0)
        matcher.compute_bitmask()  # that nothing can begin a fitting text shows only here
        if matcher.is_error():
            raise InputError(f"the JSON schema cannot be used: {_problem(matcher.get_error())}")
        return SchemaMask(matcher)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(
            TokenizerWrapper(_Vocabulary(self._tokenizer)),
            n_vocab=self._tokenizer.n_vocab,
            eos_token=sorted(self._tokenizer.stop_ids),
        )


class _Vocabulary:
    """The tokenizer with the attributes that llguidance reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.stop_ids)
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(id_) for id_ in range(tokenizer.n_vocab)]
        self.special_token_ids = sorted(tokenizer.special_tokens.values())

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


def _problem(error: str) -> str:
    """A matcher's error without the state that it appends."""
    name = error.partition("<state>")[0]
    return "nothing fits it" if name.strip() == "NoExtensionBias" else _one_line(name)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
