"""The held-out sets: nothing in them that training could have asked, the same items every time."""

from __future__ import annotations

import json
import random
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import soundfile
from evals import picture_items, speech_items, text_items
from evals.ability import ABILITIES, write_set
from PIL import Image, ImageFont
from training import picture_data, text_data
from training.speech_synthesis import Order
from training.vocabulary import split_of, vocabulary

from phi4mm.evals.ability import read_abilities

SMALL = Path(__file__).parents[1] / "data" / "held_out"


@pytest.fixture
def font(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_data, "font", lambda name, size: ImageFont.load_default(size))


def questions(lines: list[dict]) -> set[str]:
    return {line["question"] for line in lines}


def test_facts_are_parted_by_what_was_taught() -> None:
    sets = text_items.facts(random.Random(1), 1000)
    rng = random.Random(2)
    taught = {text_data.fact(rng, "train")[0] for _ in range(4000)}
    assert questions(sets["facts_taught"]) == taught
    assert questions(sets["facts"])
    assert not questions(sets["facts"]) & taught
    assert not questions(sets["facts_reworded"]) & (taught | questions(sets["facts"]))
    assert sum(map(len, sets.values())) >= 270


def test_tool_requests_are_held_out() -> None:
    rng = random.Random(3)
    trained = {text_data.tools(rng, "train")[1] for _ in range(1500)}
    lines = text_items.tools(random.Random(4), 200)
    assert not questions(lines) & trained
    assert len(questions(lines)) == 200
    calls = [line for line in lines if line["answers"][0].startswith("functools[")]
    assert 150 < len(calls) < 200, "some ask for what no tool does"
    assert any("get_weather" in line["answers"][0] for line in calls)
    assert lines == text_items.tools(random.Random(4), 200)


def test_sums_are_distinct_and_held_out() -> None:
    lines = text_items.arithmetic(random.Random(5), 300)
    assert len(questions(lines)) == 300
    rng = random.Random(6)
    assert not questions(lines) & {text_data.arithmetic(rng, "train")[0] for _ in range(4000)}


@pytest.mark.parametrize(
    ("question", "form"),
    [
        ("How many shapes are there?", "count_all"),
        ("How many stars are there?", "count"),
        ("What is the price of tax?", "price"),
        ("Which shape is red?", "shape"),
    ],
)
def test_forms_are_told_apart(question: str, form: str) -> None:
    assert picture_items.form_of(question) == form


@pytest.mark.usefixtures("font")
@pytest.mark.parametrize("form", vocabulary()["picture_questions"])
def test_pictures_show_combinations_that_were_held_out(form: str) -> None:
    for seed in range(3):
        question = picture_items.draw_question(random.Random(seed), form)
        assert picture_items.form_of(question.text) == form
        if question.picture.text:
            assert split_of(*question.picture.text.split("\n")) == "test"


@pytest.mark.usefixtures("font")
def test_a_picture_depends_on_its_number_alone(tmp_path: Path) -> None:
    line = picture_items.typed_item(tmp_path, 3)
    before = np.asarray(Image.open(tmp_path / line["image"]))
    for number in (0, 3):
        again = picture_items.typed_item(tmp_path, number)
    assert again == line
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / line["image"])), before)


def test_clips_come_back_in_the_order_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(orders: list[Order]) -> list[np.ndarray]:
        assert len({order.voice.split(":")[0] for order in orders}) == 1
        return [np.full(3, len(order.text), np.float32) for order in orders]

    monkeypatch.setattr(speech_items, "say", say)
    engines = ["espeak:a", "flite:b", "festival:c"]
    orders = [Order("x" * n, engines[n * n % 3], 1.0, False) for n in range(10)]
    waves = speech_items.synthesise(orders, lambda f, groups: list(map(f, groups)), 2)
    assert [int(wave[0]) for wave in waves] == list(range(10))


def test_phrases_and_voices_are_held_out() -> None:
    orders, again = (
        [*speech_items.phrases("speech", 40), *chain(*speech_items.long_orders(2))]
        for _ in range(2)
    )
    assert orders == again
    for order in orders:
        assert split_of(order.text) == "test"
        assert order.voice in vocabulary()["split"]["voices"]["test"]
        assert order.speed in vocabulary()["split"]["speeds"]["test"]


def test_long_recordings_hold_what_their_text_says(tmp_path: Path) -> None:
    (orders,) = speech_items.long_orders(1)
    waves = [np.full(32_000, 0.1, np.float32)] * len(orders)
    (line,) = speech_items.long_lines(tmp_path, [orders], waves)
    samples, rate = soundfile.read(tmp_path / line["audio"])
    n_said = np.count_nonzero(samples) // 32_000
    assert 10 < len(samples) / rate < 39
    said = " ".join(order.text for order in orders[:n_said])
    assert line["text"].replace(" ", "") == said.replace(" ", "")


def test_a_set_is_what_the_product_reads(tmp_path: Path) -> None:
    lines = {
        **text_items.facts(random.Random(1), 5),
        "tools": text_items.tools(random.Random(1), 5),
    }
    lines["silence"] = [speech_items.silence_item(tmp_path, number) for number in range(2)]
    write_set(tmp_path, lines)
    read = {ability.name: ability for ability in read_abilities(tmp_path)}
    assert {name: len(ability.items) for name, ability in read.items()} == {
        name: len(items) for name, items in lines.items() if items
    }
    assert (read["silence"].adapter, read["facts"].adapter) == ("speech", None)
    bars = {ability.name: ability.bar for ability in ABILITIES}
    assert {name: ability.bar for name, ability in read.items()} == {n: bars[n] for n in read}


def test_the_small_set_of_the_tests_is_the_beginning_of_the_large_one() -> None:
    for name, lines in {
        "arithmetic": text_items.arithmetic(random.Random("arithmetic"), 300),
        "tools": text_items.tools(random.Random("tools"), 300),
        **text_items.facts(random.Random("facts"), 300),
    }.items():
        text = (SMALL / f"{name}.jsonl").read_text(encoding="utf-8")
        small = [json.loads(line) for line in text.splitlines()]
        assert small == lines[: len(small)]
