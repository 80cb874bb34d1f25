"""Checks of the tokenizer's keys in a decoder file.

libllama builds its own tokenizer from them when it loads the file, and aborts the process on some
faults (two equal tokens) or misreads others; ours needs every token, byte letter and merge too.
"""

from __future__ import annotations

from collections import Counter
from itertools import compress
from typing import Final

import numpy as np

from phi4mm.modelfile import keys
from phi4mm.modelfile.metadata import Metadata

NORMAL: Final = 1
CONTROL: Final = 3
USER_DEFINED: Final = 4
UNUSED: Final = 5
TOKEN_TYPES: Final = (NORMAL, CONTROL, USER_DEFINED, UNUSED)
SPECIAL_ID_KEYS: Final = (
    keys.Tokenizer.BOS_ID,
    keys.Tokenizer.EOS_ID,
    keys.Tokenizer.EOT_ID,
    keys.Tokenizer.PAD_ID,
    keys.Tokenizer.UNK_ID,
)


def byte_letters() -> list[str]:
    """The letter that stands for each byte, 0 to 255, in byte-level BPE.

    Source: GPT-2's ``bytes_to_unicode``: printable bytes stand for themselves, the others for
    U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + n) for n in range(256))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]


def check_vocabulary(metadata: Metadata) -> None:
    """Refuse a tokenizer that libllama or ours could not be built from.

    Raises:
        ModelFileError: a key is missing, of another type, or contradicts the others.
    """
    metadata.text(keys.Tokenizer.MODEL, (keys.TOKENIZER_MODEL,))
    metadata.text(keys.Tokenizer.PRE, (keys.TOKENIZER_PRE,))
    tokens = metadata.strings(keys.Tokenizer.TOKENS)
    known = _check_tokens(metadata, tokens)
    _check_types(metadata, tokens, known)
    _check_merges(metadata, known)
    if keys.ForeignTokenizer.SCORES in metadata:
        metadata.numbers(keys.ForeignTokenizer.SCORES, length=len(tokens))
    metadata.number(keys.Tokenizer.EOS_ID)
    for key in SPECIAL_ID_KEYS:
        if key in metadata and metadata.number(key) >= len(tokens):
            raise metadata.error(
                f"{key} is {metadata[key]}, must be below the {len(tokens)} tokens there are"
            )
    key = keys.Tokenizer.STRIP_AFTER
    if key in metadata:
        ids = metadata.numbers(key).tolist()
        if not all(0 <= token_id < len(tokens) for token_id in ids):
            raise metadata.error(f"{key} has ids beyond the {len(tokens)} tokens there are")


def _check_tokens(metadata: Metadata, tokens: list[str]) -> set[str]:
    known = set(tokens)
    if len(known) < len(tokens):
        (twice, times), *_ = Counter(tokens).most_common(1)
        raise metadata.error(
            f"{keys.Tokenizer.TOKENS} has {twice[:60]!r} {times} times, tokens must differ"
        )
    if "" in known:
        raise metadata.error(f"{keys.Tokenizer.TOKENS} has an empty token")
    return known


def _check_types(metadata: Metadata, tokens: list[str], known: set[str]) -> None:
    key = keys.Tokenizer.TOKEN_TYPES
    types = metadata.numbers(key, length=len(tokens))
    wrong = np.setdiff1d(types, TOKEN_TYPES)
    if len(wrong):
        raise metadata.error(f"{key} has {wrong[0]}, must be {', '.join(map(str, TOKEN_TYPES))}")
    letters = set(byte_letters())
    if not letters <= known:
        raise metadata.error(
            f"{keys.Tokenizer.TOKENS} lacks {min(letters - known)!r}, one of the 256 byte letters"
        )
    spelt = list(compress(tokens, ((types == NORMAL) | (types == UNUSED)).tolist()))
    if not letters.issuperset("".join(spelt)):
        odd = next(token for token in spelt if not letters.issuperset(token))
        raise metadata.error(
            f"{keys.Tokenizer.TOKENS} has the normal token {odd[:60]!r}, "
            f"must be written in byte letters"
        )


def _check_merges(metadata: Metadata, known: set[str]) -> None:
    merges = metadata.strings(keys.Tokenizer.MERGES)
    joined = " ".join(merges)
    if (
        all(" " in merge for merge in merges)
        and joined.count(" ") == max(2 * len(merges) - 1, 0)  # so every merge has one space
        and known.issuperset(joined.split(" ") if merges else ())
        and known.issuperset(merge.replace(" ", "") for merge in merges)
    ):
        return
    rank = next(rank for rank, merge in enumerate(merges) if not _is_merge(merge, known))
    raise metadata.error(
        f"{keys.Tokenizer.MERGES} has {merges[rank][:60]!r} at {rank}, "
        f"must be two tokens and a space, together a token"
    )


def _is_merge(merge: str, known: set[str]) -> bool:
    left, _, right = merge.partition(" ")
    return " " not in right and known.issuperset((left, right, left + right))
