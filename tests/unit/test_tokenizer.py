"""The tokenizer rebuilt from a GGUF file gives the ids of the checkpoint's own tokenizer."""

import json
import shutil
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer

from oracle.checkpoint import DATA
from phi4mm.convert import convert_checkpoint
from phi4mm.errors import InputError, PromptTooLong
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.keys import Tokenizer as Keys
from phi4mm.prompt import tokenizer
from phi4mm.prompt.chunk import PromptBuilder
from phi4mm.prompt.message import user_message
from phi4mm.prompt.tokenizer import Detokenizer, Tokenizer

CORPUS = (
    "Hello world. Bonjour le monde. Guten Tag, schöne Grüße!",
    "नमस्ते दुनिया, यह हिन्दी है। क्षत्रिय",  # combining vowel signs
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m",  # decomposed accents
    "日本語のテキスト、中文文本，한국어 텍스트",
    "العربية עברית ภาษาไทย Ελληνικά русский",
    "def f(x):\n\treturn {'a': [1, 2.5e-3], \"b\": x ** 2}  # comment\n\n\n",
    "😀👍🏽👩‍👩‍👧‍👦🏳️‍🌈 e\u200dmoji",
    "a  b   c    d\t\te\n\n\n f \r\n g\u00a0h\u3000i",
    "I'm you're THEY'LL we've he'd it's DON'T",
    "HTTPServer parseXML McDonald iPhone eBay",
    "1 12 123 1234 12345 3.14159 1,000,000 ½ ²",
    "https://example.org/a/b?c=d&e=f#g //comment\\path",
    "$$$ !!! ... --- === ((([[[{{{",
    " leading and trailing ",
    "\x00\x01\x7f control",
    "",
)
# What stands beside a place where a long text may be cut, and what the pattern joins.
PIECES = (
    *("hello", "I", "it", "'s", "e\u0301", "日", "の", "カ", "ー", "12", "4567", "A", "ñ"),
    *(" ", "  ", "\n", "\r\n", "\t", ".", "...", ",", "、", "。", "!?", "'", "-", "\u3000", "/"),
)
LOOKALIKES = (
    "<|end|>", "<|image_1|>", "x<|endoftext10|>y", "<|user|>hi<|assistant|>", "<|tool_call|>[]",
    "[PAD123]", "Ġhello", "functools[",
)  # fmt: skip


@pytest.fixture(scope="module", params=["tiny", "heads"])
def pair(request, bundle_dir):
    """Ours from the GGUF file, and the checkpoint's own without its special tokens."""
    with Bundle.open(bundle_dir(request.param)) as bundle:
        ours = Tokenizer(bundle.decoder.file.metadata)
    reference = HFTokenizer.from_file(str(DATA / request.param / "tokenizer.json"))
    reference.encode_special_tokens = True  # in text they are text
    return ours, reference


@pytest.mark.parametrize("text", CORPUS + LOOKALIKES)
def test_ids_equal_the_checkpoints_tokenizer(pair, text):
    ours, reference = pair
    assert ours.encode(text) == reference.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", CORPUS + LOOKALIKES)
def test_decoding_gives_the_text_back(pair, text):
    ours, _ = pair
    assert ours.decode(ours.encode(text)) == text


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.sampled_from(PIECES), max_size=40), size=st.integers(1, 30))
def test_a_long_text_is_cut_where_nothing_changes(pair, words, size):
    ours, reference = pair
    text = "".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "_PART", size)
        assert ours.encode(text) == reference.encode(text, add_special_tokens=False).ids


def test_other_threads_work_while_a_long_text_is_tokenised(pair):
    ours, _ = pair
    done, gaps = threading.Event(), []

    def watch():
        last = time.perf_counter()
        while not done.wait(0.001):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    began = time.perf_counter()
    for text in ("hello world. " * 30_000, "a" * 300_000):
        assert len(ours.encode(text)) > 20_000
    seconds = time.perf_counter() - began
    done.set()
    thread.join()
    assert max(gaps) < seconds / 4


@pytest.mark.parametrize("text", LOOKALIKES)
def test_no_text_becomes_a_special_token(pair, text):
    ours, _ = pair
    assert not set(ours.encode(text)) & set(ours.special_tokens.values())


def test_special_tokens_have_the_checkpoints_ids(pair):
    ours, reference = pair
    for name in ("<|end|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|endoftext10|>"):
        assert ours.special_id(name) == reference.token_to_id(name)


def test_generation_stops_on_both_tokens(pair):
    ours, _ = pair
    assert ours.stop_ids == {ours.special_id("<|end|>"), ours.special_id("<|endoftext|>")}


def test_an_unknown_special_token_is_refused(pair):
    with pytest.raises(InputError, match=r"no special token <\|nothing\|>"):
        pair[0].special_id("<|nothing|>")


@pytest.mark.parametrize("text", CORPUS)
def test_streaming_never_shows_half_a_character(pair, text):
    ours, _ = pair
    stream = Detokenizer(ours)
    pieces = [stream.push(id_) for id_ in ours.encode(text)]
    assert "".join(pieces) + stream.flush() == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_an_incomplete_character_at_the_end_is_shown_as_such(pair):
    ours, _ = pair
    stream = Detokenizer(ours)
    first_byte = ours.encode("😀")[0]
    if ours.token_bytes(first_byte) == "😀".encode():
        pytest.skip("this vocabulary has the whole character")
    assert stream.push(first_byte) == ""
    assert stream.flush() == "\ufffd"


BLANK_PROMPTS = (
    "<|user|> \n\t Hello  <|end|><|assistant|>",
    "<|user|>\u00a0\u3000Hello<|end|> \n<|assistant|>",
    "<|user|> <|end|>  x",
    "<|system|> kept <|end|>",
)


@pytest.fixture(scope="module")
def stripping(checkpoint_dir, tmp_path_factory):
    """A bundle, and the tokenizer, of a checkpoint where two tokens swallow blanks."""
    folder = tmp_path_factory.mktemp("stripping")
    checkpoint = shutil.copytree(checkpoint_dir("tiny"), folder / "checkpoint")
    path = checkpoint / "tokenizer.json"
    root = json.loads(path.read_text())
    for token in root["added_tokens"]:
        token["rstrip"] = token["content"] in ("<|user|>", "<|end|>")
    path.write_text(json.dumps(root))
    convert_checkpoint(checkpoint, folder / "bundle")
    with Bundle.open(folder / "bundle") as bundle:
        builder = PromptBuilder(bundle, Tokenizer(bundle.decoder.file.metadata))
    return builder, HFTokenizer.from_file(str(path))


@pytest.mark.parametrize("prompt", BLANK_PROMPTS)
def test_blanks_after_special_tokens_go_where_the_checkpoint_says_so(stripping, prompt):
    builder, reference = stripping
    (chunk,) = builder.raw(prompt).chunks
    assert list(chunk.ids) == reference.encode(prompt, add_special_tokens=False).ids


@pytest.mark.parametrize("prompt", BLANK_PROMPTS)
def test_and_stay_where_it_does_not(bundle_dir, prompt):
    with Bundle.open(bundle_dir("tiny")) as bundle:
        builder = PromptBuilder(bundle, Tokenizer(bundle.decoder.file.metadata))
        (chunk,) = builder.raw(prompt).chunks
    reference = HFTokenizer.from_file(str(DATA / "tiny" / "tokenizer.json"))
    assert list(chunk.ids) == reference.encode(prompt, add_special_tokens=False).ids


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(bundle_dir, monkeypatch):
    with Bundle.open(bundle_dir("tiny")) as bundle:
        ours = Tokenizer(bundle.decoder.file.metadata)
        builder = PromptBuilder(bundle, ours, n_ctx=10)
        longest = max(map(len, bundle.decoder.file.metadata.strings(Keys.TOKENS)))
        fitting = "a" * (11 * longest - 1)
        assert builder.raw(fitting).n_tokens >= 10
        monkeypatch.setattr(Tokenizer, "encode", None)
        for build in (builder.raw, lambda text: builder.chat([user_message(text)])):
            with pytest.raises(PromptTooLong, match="at least 11 tokens, the context holds 10"):
                build(fitting + "a")
