"""Questions about pictures: reading, prices, shapes. Every picture is drawn from its own seed."""

from __future__ import annotations

import random
import re
from pathlib import Path

from training.question_data import Question, draw_size, reading
from training.shape_data import shape_question, shapes_picture
from training.vocabulary import prompt, vocabulary

from .ability import Line

TYPED_FORMS = ("count", "colour", "price", "shape", "count_all")


def form_of(question: str) -> str:
    """Which of the vocabulary's forms a question about a picture has."""
    forms: dict[str, str] = vocabulary()["picture_questions"]
    # Forms without a gap first: "How many shapes are there?" would fit a gap for shapes, too.
    return next(
        name
        for name, form in sorted(forms.items(), key=lambda item: "{" in item[1])
        if re.fullmatch(re.sub(r"\\{\w+\\}", r"\\w+", re.escape(form)), question)
    )


def draw_question(rng: random.Random, form: str) -> Question:
    """A held-out question of one form.

    Lines of one word and single shapes, which training shows too, are drawn again.
    """
    while True:
        size = draw_size(rng)
        if form in ("read", "price"):
            question = reading(rng, "test", size)
            is_combination = question.picture.text not in vocabulary()["print_words"]
        else:
            picture, shapes = shapes_picture(rng, "test", *size)
            question = Question(picture, *shape_question(rng, shapes))
            is_combination = len(shapes) > 1
        if is_combination and form_of(question.text) == form:
            return question


def picture_line(folder: Path, item_id: str, question: Question) -> Line:
    """Save a question's picture; the item without its words."""
    name = f"{item_id}.png"
    question.picture.image.save(folder / name, optimize=True)
    return {"id": item_id, "image": name, "answers": [question.answer], "metric": "verbatim"}


def read_item(folder: Path, number: int) -> Line:
    """Read all the text in a picture."""
    item_id = f"read-{number:03d}"
    question = draw_question(random.Random(item_id), "read")
    return {**picture_line(folder, item_id, question), "question": prompt("picture")}


def typed_item(folder: Path, number: int) -> Line:
    """A typed question about a picture; the forms take turns."""
    item_id = f"typed-{number:03d}"
    form = TYPED_FORMS[number % len(TYPED_FORMS)]
    question = draw_question(random.Random(item_id), form)
    return {**picture_line(folder, item_id, question), "question": question.text}
