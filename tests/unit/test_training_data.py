"""What the sample model is trained on: which items are held out, and that labels are right."""

from __future__ import annotations

import json
import random
import re
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageFont
from training import clips, picture_data, speech_synthesis, text_data
from training.canvas import Lattice, Mark
from training.clips import Span, Utterance
from training.geometry import DecoderGeometry
from training.picture_data import Picture
from training.shape_data import shape_question, shapes_picture
from training.tokenizer import SPECIALS, Tokenizer
from training.vocabulary import Split, split_of, vocabulary

SPLITS = ("train", "dev", "test")


class TestSplit:
    def test_it_is_the_same_everywhere(self) -> None:
        found = [split_of("Italy", form) for form in vocabulary()["facts"]["capital"]["questions"]]
        assert found == ["train", "test", "train", "train"]
        assert split_of(3, "plus", 4) == split_of("3", "plus", "4")

    def test_shares_are_as_the_file_says(self) -> None:
        counts = Counter(split_of("item", n) for n in range(10_000))
        rule = vocabulary()["split"]
        assert counts["test"] / 100 == pytest.approx(rule["test"], abs=1)
        assert counts["dev"] / 100 == pytest.approx(rule["dev"], abs=1)

    @pytest.mark.parametrize("kind", ["fonts", "voices", "sizes", "speeds"])
    def test_lists_do_not_overlap(self, kind: str) -> None:
        lists = [set(vocabulary()["split"][kind][split]) for split in SPLITS]
        assert sum(map(len, lists)) == len(set().union(*lists))

    def test_sums_are_held_out_in_both_orders(self) -> None:
        def operands(split: str) -> set[tuple[str, ...]]:
            rng, found = random.Random(split), set()
            for _ in range(1000):
                question, _ = text_data.arithmetic(rng, split)
                minus = "-" in question or "minus" in question
                found.add((str(minus), *sorted(re.findall(r"\d+", question), key=int)))
            return found

        train, dev, test = map(operands, SPLITS)
        assert not test & (train | dev)
        assert len(test) > 20

    def test_phrases_are_held_out_by_their_wording(self) -> None:
        rng = random.Random(1)
        for split in SPLITS:
            for _ in range(50):
                assert split_of(speech_synthesis.transcript(rng, split, "phrase")) == split


class TestTextItems:
    @pytest.mark.parametrize("split", SPLITS)
    def test_sums_are_right(self, split: str) -> None:
        rng = random.Random(2)
        for _ in range(300):
            question, answer = text_data.arithmetic(rng, split)
            a, b = map(int, re.findall(r"\d+", question))
            right = a - b if "-" in question or "minus" in question else a + b
            assert int(answer) == right >= 0, question

    def test_a_call_is_one_that_a_tool_on_offer_takes(self) -> None:
        rng, n_calls = random.Random(3), 0
        for _ in range(300):
            system, question, answer = text_data.tools(rng, "train")
            offered = {tool["name"]: tool["parameters"] for tool in json.loads(system.tools)}
            if not answer.startswith("functools"):
                continue
            n_calls += 1
            (call,) = json.loads(answer.removeprefix("functools"))
            parameters = offered[call["name"]]
            assert set(call["arguments"]) == set(parameters.get("properties", parameters))
            for value in call["arguments"].values():
                values = value.values() if isinstance(value, dict) else [value]
                assert all(str(one) in question for one in values)
        assert 200 < n_calls < 280

    def test_a_result_is_said_again(self) -> None:
        rng = random.Random(4)
        for _ in range(50):
            item = text_data.sample(rng, "train", "tool_result")
            assert item.prompt.endswith("<|end|><|assistant|>")
            result = item.answer.removeprefix("The result is ").removesuffix(".")
            assert result in item.prompt

    @pytest.mark.parametrize("kind", text_data.KINDS)
    def test_a_seed_repeats_them(self, kind: str) -> None:
        first, second = (text_data.sample(random.Random(5), "dev", kind) for _ in range(2))
        assert first == second


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


class TestTokenizer:
    def test_every_item_comes_back(self, tokenizer: Tokenizer) -> None:
        rng = random.Random(6)
        for kind in text_data.KINDS:
            for _ in range(20):
                answer = text_data.sample(rng, "train", kind).answer
                assert tokenizer.decode(tokenizer.encode(answer)) == answer

    def test_each_digit_is_a_token(self, tokenizer: Tokenizer) -> None:
        assert len(tokenizer.encode("90210")) == 5

    def test_special_tokens_are_parsed_and_the_vocabulary_is_full(
        self, tokenizer: Tokenizer
    ) -> None:
        assert tokenizer.encode("<|end|>") == [tokenizer.end]
        assert tokenizer.n_text + len(SPECIALS) == DecoderGeometry().n_vocab
        assert sorted(tokenizer.specials.values()) == list(
            range(tokenizer.n_text, DecoderGeometry().n_vocab)
        )


class TestSpans:
    def utterance(self, text: str, n: int) -> Utterance:
        return Utterance(np.ones(n, np.float32), text, clips._proportional_spans(text, n), "v")

    def test_units_share_a_phrase_by_their_letters(self) -> None:
        spans = self.utterance("red 12", 16_000).spans
        assert [span.unit for span in spans] == clips.unit_ids("red 12")
        assert (spans[0].start, round(spans[-1].end)) == (300, 16_000 - 600)
        lengths = [span.end - span.start for span in spans]
        # red, one and two have three letters each
        assert lengths == pytest.approx([lengths[0]] * 3)

    def test_joined_spans_move_with_their_clips(self) -> None:
        one, two = self.utterance("red 1", 8_000), self.utterance("2 star", 9_000)
        whole = clips.joined([one, two], [500, 700])
        assert len(whole.wave) == 8_000 + 500 + 9_000 + 700
        assert whole.text == "red 12 star"
        assert whole.spans[:2] == one.spans
        moved = [Span(s.unit, s.start + 8_500, s.end + 8_500) for s in two.spans]
        assert whole.spans[2:] == moved

    def test_a_frame_has_the_unit_that_is_said_in_its_middle(self) -> None:
        size = clips.SAMPLES_PER_TOKEN
        labels = clips.frame_units([Span(7, size, 3 * size), Span(9, 3 * size, 4 * size)], 6)
        assert labels.tolist() == [0, 7, 7, 9, 0, 0]

    def test_digits_are_said_one_by_one(self) -> None:
        assert speech_synthesis.units("red 120") == ["red", "1", "2", "0"]
        assert speech_synthesis.spelled("red 12", pause=True) == "red, one two"


def printed(rng: random.Random, split: Split, strength: float = 1.0) -> Picture:
    """Print in a picture of two crops."""
    lattice = Lattice(scale=1.0, rows=6, cols=12, cell=28, per_crop=6)
    return picture_data.printed(rng, split, 336, 168, lattice, strength)


class TestPictures:
    @pytest.fixture(autouse=True)
    def font(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One font that every machine has, for those of the lists."""
        monkeypatch.setattr(picture_data, "font", lambda name, size: ImageFont.load_default(size))

    def test_glyphs_are_in_the_patch_that_they_stand_in(self) -> None:
        marks = [Mark("b", 20, 3), Mark("a", 15, 5), Mark("c", 27, 13), Mark("$", 99, 99)]
        targets = picture_data.glyph_targets(marks, rows=3, cols=4, patch=14)
        number = {c: n + 1 for n, c in enumerate(vocabulary()["print_characters"])}
        assert targets[0, 1].tolist() == [number["a"], number["b"]]  # left to right, two at most
        assert targets[2, 3].tolist() == [number["$"], 0]  # what is outside goes to the edge
        assert np.count_nonzero(targets) == 3

    def test_a_word_is_noted_where_it_begins_and_digits_one_per_cell(self) -> None:
        lattice = Lattice(scale=1.0, rows=2, cols=6, cell=28, per_crop=6)
        word = [Mark("t", 30, 30), Mark("a", 45, 30), Mark("x", 60, 30)]
        number = [Mark("1", 60, 5), Mark("2", 75, 5), Mark(".", 82, 5), Mark("5", 90, 5)]
        picture = Picture(Image.new("RGB", (168, 56)), units=[word, number])
        row_of_number, row_of_word = picture_data.cell_texts(picture, lattice)
        nothing = ["", ""]
        assert row_of_word == [nothing, ["tax", ""], *[nothing] * 4]
        assert row_of_number == [nothing, nothing, ["1", ""], ["2", "."], ["5", ""], nothing]

    def test_a_unit_that_a_crop_cuts_or_has_no_cells_for_does_not_fit(self) -> None:
        lattice = Lattice(scale=1.0, rows=6, cols=12, cell=28, per_crop=6)
        assert lattice.fits([Mark("1", 120, 40), Mark("2", 140, 40)], size=20)
        assert not lattice.fits([Mark("1", 155, 40), Mark("2", 175, 40)], size=20)  # two crops
        assert not lattice.fits([Mark(c, 130 + 9 * n, 40) for n, c in enumerate("123")], size=20)
        assert lattice.fits([Mark(c, 130 + 9 * n, 40) for n, c in enumerate("tax")], size=20)

    def test_print_is_where_its_marks_say(self) -> None:
        for seed in range(4):
            picture = printed(random.Random(seed), "train", strength=0)
            letters = [m.text for m in picture.glyphs]
            assert letters == [c for c in picture.text if not c.isspace()]
            pixels = np.asarray(picture.image.convert("L"), np.int32)
            paper = np.median(pixels)
            for mark in picture.glyphs:
                x, y = round(mark.x), round(mark.y)
                around = pixels[max(0, y - 9) : y + 9, max(0, x - 7) : x + 7]
                assert np.abs(around - paper).max() > 60, mark

    def test_a_set_of_lines_belongs_to_one_split(self) -> None:
        rng = random.Random(7)
        for split in SPLITS:
            for _ in range(6):
                text = printed(rng, split).text
                alone = text in vocabulary()["print_words"]
                assert alone or split_of(*text.split("\n")) == split

    def test_questions_about_shapes_have_the_answer_given(self) -> None:
        rng = random.Random(8)
        for _ in range(40):
            picture, shapes = shapes_picture(rng, "test", 168, 168)
            assert isinstance(picture.image, Image.Image)
            question, answer = shape_question(rng, shapes)
            if question == "How many shapes are there?":
                assert int(answer) == len(shapes)
            elif question.startswith("How many"):
                name = question.removeprefix("How many ").removesuffix("s are there?")
                assert int(answer) == sum(shape.name == name for shape in shapes)
            else:
                (right,) = [s for s in shapes if s.name in question or s.colour in question]
                assert answer == (right.colour if "colour" in question else right.name)
