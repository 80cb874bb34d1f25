"""tokenizer.json as GGUF tokenizer metadata.

In: a checkpoint folder's tokenizer.json and chat template.  Out: ``TokenizerMetadata``.  Special
tokens are found by name, never by number.  What a reader of the GGUF file takes for granted (a
byte-level BPE with the o200k pre-tokenizer, and nothing before or beside it) is checked here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from tokenizers import Tokenizer

from phi4mm.convert.checkpoint import read_json, read_optional_json
from phi4mm.convert.tensorfile import refuse_lfs_pointer
from phi4mm.convert.writer import OutputFile
from phi4mm.errors import ModelFileError
from phi4mm.modelfile import keys
from phi4mm.modelfile.header import parse_header
from phi4mm.modelfile.hparams import WritableMetadata
from phi4mm.modelfile.vocabulary import (
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    byte_letters,
    check_vocabulary,
)

END_OF_TEXT: Final = "<|endoftext|>"  # begin, end, padding and unknown
END_OF_TURN: Final = "<|end|>"
IMAGE_TOKEN: Final = "<|endoftext10|>"
AUDIO_TOKEN: Final = "<|endoftext11|>"

# The pieces into which the o200k pre-tokenizer cuts their concatenation: contractions in either
# case, changes of case, digits by three, combining marks, runs of blanks, newlines and slashes.
# A pre-tokenizer is judged by this, not by how its pattern is spelt.
PROBE: Final = (
    "Hello", " world's", " DON'T", " we'Ll", " Mc", "Donald", " HTTPServer", " x", "234", "567",
    "8", " ", "3", ".", "14", " nai\u0308ve", " नमस्ते", " दुनिया", " 日本語", "\t", "\tfoo", "  ",
    " bar", "  \n\n", " ", " baz", "//\r\n", " --", " a", "/b", ";\n/\n", " $$$!!", " end", ".",
    " \u200d👍🏽", " ",
)  # fmt: skip

# model field -> what a reader of the GGUF file assumes
_EXPECTED_MODEL: Final[dict[str, tuple[object, ...]]] = {
    "type": ("BPE",),
    "dropout": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (False, None),
    "ignore_merges": (False, None),
}


@dataclass(frozen=True, slots=True)
class TokenizerMetadata:
    """The tokenizer, ready to be written.

    Attributes:
        metadata: its keys of the decoder file.
        stop_ids: ids of the two stop tokens.
        image_token_id: placeholder of picture embeddings.
        audio_token_id: placeholder of audio embeddings.
        notes: what a person should know about this tokenizer.
    """

    metadata: WritableMetadata
    stop_ids: frozenset[int]
    image_token_id: int
    audio_token_id: int
    notes: tuple[str, ...]


def read_tokenizer(folder: Path, n_vocab: int) -> TokenizerMetadata:
    """Read a checkpoint folder's tokenizer.

    Args:
        folder: the checkpoint.
        n_vocab: rows of the token embedding; ids without a token become unused tokens.

    Raises:
        ModelFileError: tokenizer.json is not the byte-level BPE with o200k pre-tokenizer that the
            model is used with, or contradicts itself.
    """
    path = folder / "tokenizer.json"
    root = read_json(path)
    model = _object(path, root, "model")
    _check_model(path, root, model)
    _check_pre_tokenizer(path, root.get("pre_tokenizer"))
    added = _added_tokens(path, root)
    tokens, types = _vocabulary(path, model, added, n_vocab)
    special = {str(token["content"]): cast(int, token["id"]) for token in added}
    template = _chat_template(folder)
    metadata: WritableMetadata = {
        keys.Tokenizer.MODEL: keys.TOKENIZER_MODEL,
        keys.Tokenizer.PRE: keys.TOKENIZER_PRE,
        keys.Tokenizer.TOKENS: tokens,
        keys.Tokenizer.TOKEN_TYPES: types,
        keys.Tokenizer.MERGES: _merges(path, model),
        keys.Tokenizer.BOS_ID: _id(path, special, END_OF_TEXT),
        keys.Tokenizer.EOS_ID: _id(path, special, END_OF_TEXT),
        keys.Tokenizer.EOT_ID: _id(path, special, END_OF_TURN),
        keys.Tokenizer.PAD_ID: _id(path, special, END_OF_TEXT),
        keys.Tokenizer.UNK_ID: _id(path, special, END_OF_TEXT),
        keys.Tokenizer.ADD_BOS: False,
    }
    if strip_after := [cast(int, token["id"]) for token in added if token.get("rstrip")]:
        metadata[keys.Tokenizer.STRIP_AFTER] = strip_after
    if template is not None:
        metadata[keys.Tokenizer.CHAT_TEMPLATE] = template
    _check_as_written(path, metadata)
    return TokenizerMetadata(
        metadata=metadata,
        stop_ids=frozenset({special[END_OF_TEXT], special[END_OF_TURN]}),
        image_token_id=_id(path, special, IMAGE_TOKEN),
        audio_token_id=_id(path, special, AUDIO_TOKEN),
        notes=tuple(_notes(added, types, template)),
    )


def _check_model(path: Path, root: Mapping[str, object], model: Mapping[str, object]) -> None:
    if root.get("normalizer") is not None:
        raise ModelFileError(f"{path}: has a normalizer; this model's tokenizer has none")
    for field, allowed in _EXPECTED_MODEL.items():
        if model.get(field) not in allowed:
            raise ModelFileError(
                f"{path}: model.{field} is {model.get(field)!r}, not {allowed[0]!r}"
            )


def _check_pre_tokenizer(path: Path, pre_tokenizer: object) -> None:
    """Run the file's pre-tokenizer on the probe."""
    bare = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": pre_tokenizer,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    text = "".join(PROBE)
    try:
        backend = Tokenizer.from_str(json.dumps(bare)).pre_tokenizer
        cuts = backend.pre_tokenize_str(text) if backend else [("", (0, len(text)))]
    except Exception as error:  # the library raises no narrower type
        raise ModelFileError(f"{path}: pre_tokenizer cannot be used ({error})") from None
    pieces = tuple(text[start:stop] for _, (start, stop) in cuts)
    encoded = "".join(piece for piece, _ in cuts)
    if pieces != PROBE or not set(encoded) <= set(byte_letters()):
        found = json.dumps(pre_tokenizer, ensure_ascii=False)
        raise ModelFileError(
            f"{path}: the pre-tokenizer does not cut text as o200k (gpt-4o) does: {found[:400]}"
        )


def _added_tokens(path: Path, root: Mapping[str, object]) -> list[Mapping[str, object]]:
    added = root.get("added_tokens")
    if not isinstance(added, list):
        raise ModelFileError(f"{path}: added_tokens is missing")
    for token in added:
        match token:
            case {"id": int(), "content": str(), "special": bool()}:
                pass
            case _:
                raise ModelFileError(f"{path}: added_tokens holds {token!r}, not id and content")
        for flag in ("single_word", "lstrip"):
            if token.get(flag):
                raise ModelFileError(f"{path}: {token['content']!r} has {flag}: not supported")
    return added


def _vocabulary(
    path: Path, model: Mapping[str, object], added: list[Mapping[str, object]], n_vocab: int
) -> tuple[list[str], list[int]]:
    """Texts and types of all ``n_vocab`` tokens."""
    tokens: list[str | None] = [None] * n_vocab
    types = [UNUSED] * n_vocab
    special = {str(token["content"]): token["id"] for token in added}
    for text, token_id in _object(path, model, "vocab").items():
        if text not in special:
            _place(path, tokens, text, token_id)
            types[cast(int, token_id)] = NORMAL
        elif special[text] != token_id:
            raise ModelFileError(f"{path}: {text!r} has ids {token_id} and {special[text]}")
    for token in added:
        _place(path, tokens, str(token["content"]), token["id"])
        types[cast(int, token["id"])] = CONTROL if token["special"] else USER_DEFINED
    return [f"[PAD{i}]" if text is None else text for i, text in enumerate(tokens)], types


def _place(path: Path, tokens: list[str | None], text: str, token_id: object) -> None:
    if type(token_id) is not int or not 0 <= token_id < len(tokens):
        raise ModelFileError(
            f"{path}: token {text!r} has id {token_id!r}, config.json has vocab_size {len(tokens)}"
        )
    if tokens[token_id] is not None:
        raise ModelFileError(
            f"{path}: tokens {tokens[token_id]!r} and {text!r} share id {token_id}"
        )
    tokens[token_id] = text


def _merges(path: Path, model: Mapping[str, object]) -> list[str]:
    """Merges as ``left right``, from either form that tokenizer.json may have."""
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise ModelFileError(f"{path}: model.merges is missing")
    texts = []
    for rank, merge in enumerate(merges):
        match merge.split(" ") if isinstance(merge, str) else merge:
            case [str(left), str(right)]:
                texts.append(f"{left} {right}")
            case _:
                raise ModelFileError(f"{path}: model.merges[{rank}] is {merge!r}, not two tokens")
    return texts


def _check_as_written(path: Path, metadata: WritableMetadata) -> None:
    """Apply the reader's own checks now, so that no file is written that it would refuse."""
    try:
        header = OutputFile(path, metadata, ()).header()
    except UnicodeEncodeError as error:
        raise ModelFileError(f"{path}: {error.object[:60]!r} is not Unicode text") from None
    check_vocabulary(parse_header(memoryview(header), str(path)).metadata)


def _chat_template(folder: Path) -> str | None:
    """The chat template, from wherever transformers may have put it."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        refuse_lfs_pointer(jinja)
        try:
            return jinja.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{jinja}: not UTF-8 text ({error.reason})") from None
    for name in ("tokenizer_config.json", "chat_template.json", "processor_config.json"):
        template = read_optional_json(folder / name).get("chat_template")
        if isinstance(template, str):
            return template
    return None


def _notes(added: list[Mapping[str, object]], types: list[int], template: str | None) -> list[str]:
    notes = []
    if template is None:
        notes.append("no chat template found: the file carries none (phi4mm has its own)")
    if n_unused := types.count(UNUSED):
        notes.append(f"{n_unused} ids have no token: written as unused")
    return notes


def _object(path: Path, parent: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: {name} is missing or no object")
    return value


def _id(path: Path, special: Mapping[str, int], name: str) -> int:
    if name not in special:
        raise ModelFileError(f"{path}: added_tokens lacks {name}")
    return special[name]
