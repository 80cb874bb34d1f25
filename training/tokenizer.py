"""The sample model's tokenizer: byte-level BPE behind the gpt-4o pre-tokenizer.

tokenizer.json is kept, so that a change of the text tasks does not make checkpoints useless;
``python -m training.tokenizer`` makes it anew.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from . import text_data
from .geometry import DecoderGeometry
from .vocabulary import vocabulary

SPECIALS = (
    "<|endoftext|>",
    "<|endoftext10|>",
    "<|endoftext11|>",
    "<|endofprompt|>",
    "<|assistant|>",
    "<|end|>",
    "<|user|>",
    "<|system|>",
    "<|tool|>",
    "<|/tool|>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<|tool_response|>",
    "<|tag|>",
)
PATH = Path(__file__).with_name("tokenizer.json")
IMAGE, AUDIO, END = "<|endoftext10|>", "<|endoftext11|>", "<|end|>"
CORPUS = {"facts": 0.2, "arithmetic": 0.36, "copy": 0.14, "tools": 0.25, "tool_result": 0.05}
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT_4O = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def _corpus(rng: random.Random) -> Iterator[str]:
    v = vocabulary()
    words = v["print_words"] + v["spoken_words"] + v["digits"]
    for _ in range(6000):
        kind = rng.choices(list(CORPUS), list(CORPUS.values()))[0]
        item = text_data.sample(rng, "train", kind)
        yield re.sub(r"<\|/?\w+\|>", "\n", item.prompt)
        yield item.answer
    for _ in range(1500):
        yield "".join(" " + word for word in rng.sample(words, 20))
        yield "\n".join(rng.sample(words, 20))
    questions = [*v["picture_questions"].values(), v["prompts"]["clip"]]
    for question in questions * 200:
        names = {"shape": rng.choice(v["shapes"]), "colour": rng.choice(v["colours"])}
        text = question.format(item=rng.choice(v["print_words"]), **names)
        yield text
        yield " " + text.lower().rstrip("?.")


def build(n_vocab: int = DecoderGeometry().n_vocab) -> FastTokenizer:
    """Train the merges on the text tasks and add the model's special tokens after them.

    Digits are kept out of the merges, so that every digit is one token: numbers are then read
    and computed digit by digit.
    """
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GPT_4O), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (re.sub(r"\d", "", text) for text in _corpus(random.Random(1)))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return tokenizer


class Tokenizer:
    """Text to ids and back, with the special tokens parsed."""

    def __init__(self, fast: FastTokenizer) -> None:
        self.fast = fast
        self.specials = {name: fast.token_to_id(name) for name in SPECIALS}
        self.n_text = fast.get_vocab_size() - len(SPECIALS)

    @classmethod
    def load(cls) -> Tokenizer:
        """The tokenizer that lies beside this module."""
        return cls(FastTokenizer.from_file(str(PATH)))

    def encode(self, text: str) -> list[int]:
        """Ids of the text; special tokens in it are parsed."""
        return self.fast.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Text of the ids, special tokens left out."""
        return self.fast.decode(ids)

    @property
    def end(self) -> int:
        """Id of the token that ends an answer."""
        return self.specials[END]


if __name__ == "__main__":
    build().save(str(PATH))
