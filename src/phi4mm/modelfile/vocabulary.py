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
_SPACE: Final = 0x20


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
    wrong = types[~np.isin(types, TOKEN_TYPES)]
    if len(wrong):
        raise metadata.error(f"{key} has {wrong[0]}, must be {', '.join(map(str, TOKEN_TYPES))}")
    letters = byte_letters()
    if not known.issuperset(letters):
        missing = min(set(letters) - known)
        raise metadata.error(
            f"{keys.Tokenizer.TOKENS} lacks {missing!r}, one of the 256 byte letters"
        )
    spelt = list(compress(tokens, ((types == NORMAL) | (types == UNUSED)).tolist()))
    if not _is_spelt_in("".join(spelt), letters):
        odd = next(token for token in spelt if not set(letters).issuperset(token))
        raise metadata.error(
            f"{keys.Tokenizer.TOKENS} has the normal token {odd[:60]!r}, "
            f"must be written in byte letters"
        )


def _is_spelt_in(text: str, letters: list[str]) -> bool:
    """Whether a text has no character but these; all characters at once."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    allowed = np.zeros(1 + max(map(ord, letters)), np.bool_)
    allowed[[ord(letter) for letter in letters]] = True
    return bool(codes.max(initial=0) < len(allowed) and allowed[codes].all())


def merge_pairs(merges: list[str]) -> list[tuple[str, str]]:
    """What each merge joins, of merges that have one space each; all of them split at once."""
    if not merges:
        return []
    parts = " ".join(merges).split(" ")
    return list(zip(parts[::2], parts[1::2], strict=True))


def _check_merges(metadata: Metadata, known: set[str]) -> None:
    merges = metadata.strings(keys.Tokenizer.MERGES)
    if not merges or _are_merges(merges, known):
        return
    rank = next(rank for rank, merge in enumerate(merges) if not _is_merge(merge, known))
    raise metadata.error(
        f"{keys.Tokenizer.MERGES} has {merges[rank][:60]!r} at {rank}, "
        f"must be two tokens and a space, together a token"
    )


def _are_merges(merges: list[str], known: set[str]) -> bool:
    """Whether all are two tokens and a space, together a token; none is looked at alone."""
    joined = "\0".join(merges)  # no string of a file holds a NUL
    data = np.frombuffer(joined.encode(), np.uint8)
    marks = data[(data == _SPACE) | (data == 0)]
    has_one_space_each = (
        len(marks) == 2 * len(merges) - 1
        and bool((marks[::2] == _SPACE).all())
        and bool((marks[1::2] == 0).all())
    )
    return (
        has_one_space_each
        and known.issuperset(joined.replace("\0", " ").split(" "))
        and known.issuperset(joined.replace(" ", "").split("\0"))
    )


def _is_merge(merge: str, known: set[str]) -> bool:
    left, _, right = merge.partition(" ")
    return " " not in right and known.issuperset((left, right, left + right))
