r"""The tokenizer, rebuilt from a GGUF file's vocabulary, merges and pre-tokenizer.

libllama's own tokenizer is not used: its gpt-4o pattern lacks ``\p{M}`` and so splits Hindi or
decomposed accents differently from the reference (docs/model.md, "Tokenizer").  Special tokens are
never found inside text; they come as segments.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from phi4mm.errors import InputError
from phi4mm.modelfile.keys import Tokenizer as Keys
from phi4mm.modelfile.metadata import Metadata
from phi4mm.modelfile.vocabulary import CONTROL, USER_DEFINED, byte_letters, merge_pairs

# The o200k pattern of tokenizer.json, "Tokenizer" in docs/model.md.
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
GPT_4O_PATTERN = "|".join([
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTION}",
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTION}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])  # fmt: skip

# A text is encoded by parts of about so many characters: as a whole it takes 200 bytes for each,
# and other threads wait until all is done.
_PART = 1 << 16
# No match of the pattern goes on from one of these letters to one of these signs.
_CUT = re.compile(
    r"(?<=[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5])"
    r"(?=[ \n.,;:!?\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
)

_STOP_TOKENS = ("<|end|>", "<|endoftext|>")
_STOP_KEYS = (Keys.EOS_ID, Keys.EOT_ID)


class Tokenizer:
    """Text to ids and back.

    Attributes:
        n_vocab: size of the vocabulary.
        special_tokens: control and user-defined tokens, name to id.
        stop_ids: ids that end an answer and are never printed.
        strip_after: special tokens that swallow the blanks after them.
        n_longest: bytes of the longest token.
    """

    def __init__(self, metadata: Metadata) -> None:
        """Build from a decoder file's metadata, which ``Bundle.open`` has checked."""
        tokens = metadata.strings(Keys.TOKENS)
        types = metadata.numbers(Keys.TOKEN_TYPES)
        self._tokens = tokens
        self.n_vocab = len(tokens)
        is_special = (types == CONTROL) | (types == USER_DEFINED)
        special_ids: list[int] = np.flatnonzero(is_special).tolist()
        self.special_tokens = {tokens[id_]: id_ for id_ in special_ids}
        self._special_ids = frozenset(self.special_tokens.values())
        self.stop_ids = self._find_stop_ids(metadata)
        has_strip = Keys.STRIP_AFTER in metadata
        strip_ids = metadata.numbers(Keys.STRIP_AFTER).tolist() if has_strip else []
        self.strip_after = frozenset(tokens[id_] for id_ in strip_ids)
        merges = merge_pairs(metadata.strings(Keys.MERGES))
        vocabulary = dict(zip(tokens, range(self.n_vocab), strict=True))
        self._backend = BackendTokenizer(models.BPE(vocab=vocabulary, merges=merges))
        self._backend.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(GPT_4O_PATTERN), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])  # fmt: skip
        self._byte_of_letter = {letter: byte for byte, letter in enumerate(byte_letters())}
        self.n_longest = max(map(len, tokens))  # a letter stands for a byte

    def _find_stop_ids(self, metadata: Metadata) -> frozenset[int]:
        """Both stop tokens of the model (docs/model.md, "Special tokens"), by key and by name."""
        by_key = [int(metadata.number(key)) for key in _STOP_KEYS if key in metadata]
        by_name = [
            self.special_tokens[name] for name in _STOP_TOKENS if name in self.special_tokens
        ]
        return frozenset(by_key + by_name)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text.  No special token is recognised in it, and none is added."""
        ids: list[int] = []
        for part in _parts(text):
            if len(part) <= 2 * _PART:
                ids += self._backend.encode(part, add_special_tokens=False).ids
            else:  # a batch lets other threads work meanwhile
                (encoded,) = self._backend.encode_batch([part], add_special_tokens=False)
                ids += encoded.ids
        return ids

    def special_id(self, token: str) -> int:
        """The id of a special token.

        Raises:
            InputError: the vocabulary has no such special token.
        """
        try:
            return self.special_tokens[token]
        except KeyError:
            raise InputError(f"the vocabulary has no special token {token}") from None

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; a special token stands for its name."""
        token = self._tokens[token_id]
        if token_id in self._special_ids:
            return token.encode()
        return bytes(self._byte_of_letter[letter] for letter in token)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")


def _parts(text: str) -> Iterator[str]:
    """The text, cut where its tokens do not change."""
    start = 0
    while len(text) - start > _PART and (cut := _CUT.search(text, start + _PART)) is not None:
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


class Detokenizer:
    """Turns a stream of ids into text, holding back characters that are not complete yet."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is left when the stream ends: U+FFFD for an incomplete character, else nothing."""
        return self._decoder.decode(b"", final=True)
