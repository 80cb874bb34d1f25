"""The tokenizer that a file carries is the one of tokenizer.json, special tokens included."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HFTokenizer

from phi4mm.convert.tokenizer import PROBE, read_tokenizer
from phi4mm.convert.writer import OutputFile
from phi4mm.errors import ModelFileError
from phi4mm.modelfile import keys
from phi4mm.modelfile.header import parse_header
from phi4mm.prompt.tokenizer import Tokenizer

SCRIPTS = Path(__file__).parents[2] / "scripts"
N_VOCAB = 512
Write = Callable[[Callable[[dict[str, Any]], object]], Path]


@pytest.fixture
def edited(checkpoint_dir: Callable[..., Path], tmp_path: Path) -> Write:
    """Writes a folder with the tiny model's tokenizer.json, changed."""

    def write(change: Callable[[dict[str, Any]], object] = lambda root: None) -> Path:
        root = json.loads((checkpoint_dir("tiny", "ms") / "tokenizer.json").read_text())
        change(root)
        (tmp_path / "tokenizer.json").write_text(json.dumps(root))
        return tmp_path

    return write


def special(root: dict[str, Any], content: str) -> dict[str, Any]:
    return next(token for token in root["added_tokens"] if token["content"] == content)


def test_tokens_types_and_ids(edited: Write) -> None:
    folder = edited(lambda root: special(root, "<|tool_call|>").update(special=False))
    root = json.loads((folder / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in root["added_tokens"]}
    found = read_tokenizer(folder, N_VOCAB)
    metadata = found.metadata
    tokens: Any = metadata[keys.Tokenizer.TOKENS]
    types: Any = metadata[keys.Tokenizer.TOKEN_TYPES]
    assert len(tokens) == len(types) == N_VOCAB
    for text, token_id in (root["model"]["vocab"] | ids).items():
        assert tokens[token_id] == text
    assert types[ids["<|end|>"]] == 3
    assert types[ids["<|tool_call|>"]] == 4
    assert types[0] == 1
    assert (tokens[N_VOCAB - 1], types[N_VOCAB - 1]) == (f"[PAD{N_VOCAB - 1}]", 5)
    assert metadata[keys.Tokenizer.EOS_ID] == ids["<|endoftext|>"]
    assert metadata[keys.Tokenizer.EOT_ID] == ids["<|end|>"]
    assert found.stop_ids == {ids["<|endoftext|>"], ids["<|end|>"]}
    assert found.image_token_id == ids["<|endoftext10|>"]
    assert found.audio_token_id == ids["<|endoftext11|>"]


def test_special_ids_are_found_by_name(edited: Write) -> None:
    def swap(root: dict[str, Any]) -> None:
        one, two = special(root, "<|endoftext10|>"), special(root, "<|tag|>")
        one["id"], two["id"] = two["id"], one["id"]

    before = read_tokenizer(edited(), N_VOCAB).image_token_id
    after = read_tokenizer(edited(swap), N_VOCAB).image_token_id
    assert before != after


def test_merges_in_the_old_form_are_the_same(edited: Write) -> None:
    new = read_tokenizer(edited(), N_VOCAB).metadata[keys.Tokenizer.MERGES]

    def to_text(root: dict[str, Any]) -> None:
        root["model"]["merges"] = [" ".join(pair) for pair in root["model"]["merges"]]

    assert read_tokenizer(edited(to_text), N_VOCAB).metadata[keys.Tokenizer.MERGES] == new


def set_pattern(root: dict[str, Any], pattern: str) -> None:
    root["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern


def pattern_of(root: dict[str, Any]) -> str:
    pattern: str = root["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    return pattern


def test_another_spelling_of_the_same_pattern_is_accepted(edited: Write) -> None:
    def spell(root: dict[str, Any]) -> None:  # as tiktoken spells it
        contraction = r"('s|'S|'t|'T|'re|'rE|'Re|'RE|'ve|'vE|'Ve|'VE|'m|'M|'ll|'lL|'Ll|'LL|'d|'D)?"
        set_pattern(root, pattern_of(root).replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", contraction))
        root["pre_tokenizer"]["pretokenizers"][0].update(behavior="Isolated", invert=False)

    read_tokenizer(edited(spell), N_VOCAB)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda p: p.replace(r"\p{M}", ""),  # combining marks
        lambda p: p.replace(r"\p{N}{1,3}", r"\p{N}"),  # digits one by one
        lambda p: p.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", ""),  # contractions
        lambda p: p.replace(r"[\r\n/]*", r"[\r\n]*"),  # slashes
        lambda p: p.replace(r"|\s+(?!\S)", ""),  # runs of blanks
        lambda p: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+",  # GPT-2
    ],
    ids=["marks", "digits", "contractions", "slashes", "blanks", "gpt-2"],
)
def test_another_pre_tokenizer_is_refused(spoil: Callable[[str], str], edited: Write) -> None:
    folder = edited(lambda root: set_pattern(root, spoil(pattern_of(root))))
    with pytest.raises(
        ModelFileError, match=r"does not cut text as o200k \(gpt-4o\) does: .*Regex"
    ):
        read_tokenizer(folder, N_VOCAB)


def test_the_probe_is_what_the_reader_cuts(edited: Write) -> None:
    """The pattern that the reader of the files builds passes the converter's check."""
    from phi4mm.prompt.tokenizer import GPT_4O_PATTERN

    read_tokenizer(edited(lambda root: set_pattern(root, GPT_4O_PATTERN)), N_VOCAB)
    assert len(PROBE) > 30


def add_token(root: dict[str, Any], **token: object) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    root["added_tokens"].append(flags | token)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(normalizer={"type": "NFC"}), "has a normalizer"),
        (lambda r: r["model"].update(type="Unigram"), "model.type is 'Unigram', not 'BPE'"),
        (lambda r: r["model"].update(byte_fallback=True), "model.byte_fallback is True"),
        (lambda r: r["model"].update(ignore_merges=True), "model.ignore_merges is True"),
        (lambda r: r["model"].pop("merges"), "model.merges is missing"),
        (lambda r: r["model"].pop("vocab"), "vocab is missing"),
        (lambda r: r.pop("model"), "model is missing"),
        (lambda r: r.pop("added_tokens"), "added_tokens is missing"),
        (lambda r: r.update(pre_tokenizer=None), "does not cut text as o200k"),
        (lambda r: r.update(pre_tokenizer={"type": "New"}), "pre_tokenizer cannot be used"),
        (lambda r: r["model"]["merges"].append("abc"), r"merges\[\d+\] is 'abc', not two tokens"),
        (lambda r: r["model"]["merges"].append(["h", "@@"]), "has 'h @@' at"),
        (lambda r: r["model"]["vocab"].update({"日": 500}), "has the normal token '日'"),
        (lambda r: r["model"]["vocab"].pop("A"), "lacks 'A', one of the 256 byte letters"),
        (lambda r: r["model"]["vocab"].update(x1=3), "share id 3"),
        (
            lambda r: r["model"]["vocab"].update(x1=512),
            "has id 512, config.json has vocab_size 512",
        ),
        (lambda r: r["model"]["vocab"].update(x1=-1), "has id -1"),
        (lambda r: special(r, "<|end|>").update(content="<|stop|>"), r"lacks <\|end\|>"),
        (lambda r: special(r, "<|tag|>").update(single_word=True), "has single_word"),
        (lambda r: special(r, "<|tag|>").update(content="\ud800"), "is not Unicode text"),
        (lambda r: special(r, "<|tag|>").pop("special"), "added_tokens holds"),
        (lambda r: add_token(r, id=505, content="A", special=True), r"'A' has ids \d+ and 505"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(
    change: Callable[[dict[str, Any]], object], message: str, edited: Write
) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        read_tokenizer(edited(change), N_VOCAB)
    assert "tokenizer.json" in str(caught.value)


def test_the_chat_template_is_found_wherever_it_may_be(edited: Write) -> None:
    folder = edited()

    def template() -> object:
        return read_tokenizer(folder, N_VOCAB).metadata.get(keys.Tokenizer.CHAT_TEMPLATE)

    assert template() is None
    assert any("no chat template" in note for note in read_tokenizer(folder, N_VOCAB).notes)
    for name in ("processor_config.json", "chat_template.json", "tokenizer_config.json"):
        (folder / name).write_text(json.dumps({"chat_template": f"from {name}"}))
        assert template() == f"from {name}"
    (folder / "chat_template.jinja").write_text("from jinja")
    assert template() == "from jinja"


def test_tokens_that_swallow_blanks_are_kept(edited: Write) -> None:
    folder = edited(lambda root: special(root, "<|user|>").update(rstrip=True))
    metadata = read_tokenizer(folder, N_VOCAB).metadata
    (token_id,) = metadata[keys.Tokenizer.STRIP_AFTER]
    assert metadata[keys.Tokenizer.TOKENS][token_id] == "<|user|>"


# ---- the real vocabulary

CORPUS = (
    "The quick brown fox jumps over 13 lazy dogs; 2024 was 100% fun!\n\n\tdef f(x):\n        return"
    " x  # done\r\n don't DON'T we'LL \u00a0\u2003 https://example.org/a/b?c=1&d=2 //\n\n/ 1234567 "
    "नमस्ते दुनिया, आप कैसे हैं? Cafe\u0301 nai\u0308ve ångström Ελληνικά Привет мир שלום مرحبا "
    "日本語のテキスト、中文文本。 한국어 👩\u200d👩\u200d👧\u200d👦🏽 3.14159 $$$ "
    "... \u200d\ufeff end  "
)


@pytest.mark.slow
def test_the_real_vocabulary_gives_the_ids_of_the_tokenizers_library(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("o200k", SCRIPTS / "o200k_tokenizer.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    root = script.tokenizer_json(script.read_ranks())
    (tmp_path / "tokenizer.json").write_text(json.dumps(root))
    found = read_tokenizer(tmp_path, 200_064)
    header = OutputFile(tmp_path / "x.gguf", found.metadata, ()).header()
    ours = Tokenizer(parse_header(memoryview(header), "x.gguf").metadata)
    theirs = HFTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = theirs.encode(CORPUS, add_special_tokens=False).ids
    assert ours.encode(CORPUS) == ids
    assert ours.decode(ids) == CORPUS
    assert (found.image_token_id, found.audio_token_id) == (200010, 200011)
    assert found.stop_ids == {199999, 200020}
