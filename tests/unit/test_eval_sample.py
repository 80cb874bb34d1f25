"""`phi4mm eval sample`: sets, scores and intervals, many items at once, switched adapters."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measured import run

from phi4mm import __version__
from phi4mm.cli.eval_sample import summary
from phi4mm.convert import convert_checkpoint
from phi4mm.engine.context_plan import ContextPlan
from phi4mm.engine.event import Event, Timings, Usage
from phi4mm.errors import Cancelled, InputError, NativeError
from phi4mm.evals.ability import Ability, read_abilities
from phi4mm.evals.ability_score import ask_abilities, judge, score_ability, spoken_words
from phi4mm.evals.answer_scores import same_calls, verbatim
from phi4mm.evals.answers_file import AnswersFile
from phi4mm.evals.interval import rate_interval, share_interval
from phi4mm.evals.manifest import ClipItem, QuestionItem, read_questions
from phi4mm.evals.request import messages_of
from phi4mm.evals.slots import Asked, Said, SlotAsker, ask_side_by_side

SET = Path(__file__).parents[1] / "data" / "held_out"


class TestIntervals:
    @pytest.mark.parametrize(
        ("n_right", "n", "low", "high"),
        # Source: scipy.stats.binomtest(k, n).proportion_ci(method="wilson") 1.16
        [(0, 10, 0, 0.2775), (8, 10, 0.4902, 0.9433), (300, 300, 0.9874, 1)],
    )
    def test_shares_are_wilson_s(self, n_right: int, n: int, low: float, high: float) -> None:
        found = share_interval(n_right, n)
        assert found.value == n_right / n
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)

    def test_rates_vary_as_their_clips_do(self) -> None:
        same = rate_interval([1] * 50, [10] * 50)
        assert (same.low, same.value, same.high) == pytest.approx((0.1, 0.1, 0.1))
        mixed = rate_interval([0] * 45 + [10] * 5, [10] * 50)
        assert mixed.value == pytest.approx(0.1)
        # five failures of 50: between one and nine
        assert 0.02 <= mixed.low < 0.04
        assert 0.16 < mixed.high < 0.22
        assert rate_interval([0] * 45 + [10] * 5, [10] * 50) == mixed
        assert rate_interval([3], [0]).value == 3


@pytest.mark.parametrize(
    ("said", "right", "score"),
    [
        (' functools[{"name":"f","arguments":{"b":1,"a":"x"}}]', "f", 1),
        ('functools[{"name": "f", "arguments": {"a": "x", "b": 1}}] Done.', "f", 0),
        ('functools[{"name": "f", "arguments": {"a": "x", "b": "1"}}]', "f", 0),
        ('functools[{"name": "g", "arguments": {"a": "x", "b": 1}}]', "f", 0),
        ('functools[{"name": "f", "arguments": {"a": "x", "b": 1', "f", 0),
        ("4", "4", 1),
        ("4", "f", 0),
        ('functools[{"name": "f", "arguments": {}}]', "4", 0),
    ],
)
def test_calls_are_compared_by_what_they_mean(said: str, right: str, score: float) -> None:
    answer = 'functools[{"name": "f", "arguments": {"a": "x", "b": 1}}]' if right == "f" else right
    assert same_calls(said, [answer]) == score


def test_verbatim_means_every_sign() -> None:
    assert verbatim(" $5.20\nmilk ", ["$5.20\nmilk"]) == 1
    assert verbatim("5.20\nmilk", ["$5.20\nmilk"]) == 0
    assert verbatim("", [""]) == 1


def test_digits_are_words_of_their_own() -> None:
    assert spoken_words("Red 120, star.") == ["red", "1", "2", "0", "star"]
    item = ClipItem("a", "a.flac", "red 120 star")
    judged = judge(item, Said("red 12 start"), is_adapter_on=True)
    assert (judged.n_errors, judged.n_words) == (2, 5)


class TestManifest:
    def lines(self, folder: Path, *lines: dict[str, Any]) -> Path:
        path = folder / "items.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return path

    def test_questions_of_every_kind(self, tmp_path: Path) -> None:
        tools = '[{"name": "f"}]'
        spoken, called = read_questions(
            self.lines(
                tmp_path,
                {"image": "a.png", "audio": "a.flac", "answers": ["2"], "metric": "verbatim"},
                {"system": "Hi.", "tools": tools, "question": "?", "answers": ["x"], "id": "t"},
            )
        )
        assert spoken.images == (str(tmp_path / "a.png"),)
        assert spoken.question == ""
        (message,) = messages_of(spoken)
        assert len(message.parts) == 2
        system, user = messages_of(called)
        assert (system.role, system.tools, user.role) == ("system", tools, "user")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ({"answers": ["x"]}, "'question' is None"),
            ({"question": "?", "answers": ["x"], "tools": ""}, "'tools' is ''"),
            ({"audio": "a.flac", "question": "", "answers": ["x"]}, "'question' is ''"),
            ({"audio": "a.flac", "answers": ["x"], "metric": "y"}, "verbatim, call"),
        ],
    )
    def test_a_wrong_line_is_named(self, tmp_path: Path, line: dict, message: str) -> None:
        with pytest.raises(InputError, match=message):
            read_questions(self.lines(tmp_path, line))


class TestAbilities:
    def test_the_small_set_is_read(self) -> None:
        abilities = {ability.name: ability for ability in read_abilities(SET)}
        adapters = {name: ability.adapter for name, ability in abilities.items()}
        assert adapters == {
            "read": "vision", "speech": "speech", "spoken": "vision", "typed": "vision",
            "facts_taught": None, "facts": None, "facts_reworded": None, "arithmetic": None,
            "tools": None,
        }  # fmt: skip
        assert abilities["read"].is_reached(0.9)
        assert not abilities["read"].is_reached(0.89)
        assert abilities["speech"].is_reached(0.08)
        assert not abilities["speech"].is_reached(0.09)
        assert abilities["facts_reworded"].is_reached(0) is None

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"bar": "high"}, "'bar' is 'high'"),
            ({"max_tokens": True}, "'max_tokens' is True"),
            ({"kind": "songs"}, "must be questions or clips"),
            ({"more": 1}, "must have name, title"),
            ({"manifest": "absent.jsonl"}, "absent.jsonl: cannot be read"),
        ],
    )
    def test_a_wrong_entry_is_named(self, tmp_path: Path, change: dict, message: str) -> None:
        (tmp_path / "x.jsonl").write_text('{"question": "?", "answers": ["x"]}\n')
        entry = {"name": "x", "title": "X", "kind": "questions", "manifest": "x.jsonl"}
        entry |= {"max_tokens": 5, "bar": None} | change
        path = tmp_path / "abilities.json"
        path.write_text(json.dumps({"phi4mm_abilities": 1, "abilities": [entry]}))
        with pytest.raises(InputError, match=message):
            read_abilities(tmp_path)

    @pytest.mark.parametrize("text", ["{", "[]", '{"phi4mm_abilities": 2, "abilities": [1]}'])
    def test_another_file_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "abilities.json").write_text(text)
        with pytest.raises(InputError, match="not a list of abilities"):
            read_abilities(tmp_path)


class FakePrompt:
    def __init__(self, text: str) -> None:
        self.text = text
        self.n_tokens = len(text)


class FakePrompts:
    """Prompts are their questions."""

    def chat(self, messages: list[Any]) -> FakePrompt:
        return FakePrompt(messages[-1].parts[-1].text)


class FakeEngine:
    """Echoes prompts letter by letter, in capitals without an adapter; short ones end first."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots, self.most, self.waiting = n_slots, 0, {}
        self.n_submitted = 0

    def submit(self, prompt: FakePrompt, sampling: Any, adapter: str | None) -> int:
        if "!" in prompt.text:
            raise InputError("not this one")
        text = prompt.text if adapter == "auto" else prompt.text.upper()
        self.n_submitted += 1
        self.waiting[self.n_submitted] = list(text[: sampling.max_tokens])
        self.most = max(self.most, len(self.waiting))
        assert self.most <= self.n_slots
        return self.n_submitted

    def step(self) -> list[tuple[int, Event]]:
        events = []
        for id_, letters in list(self.waiting.items()):
            letter = letters.pop(0)
            reason = None if letters else "stop"
            events.append((id_, Event(letter, (1,), Usage(1, 0, 0), Timings(), reason)))
            if not letters:
                del self.waiting[id_]
        return events


def question(id_: str, text: str, *answers: str, images: tuple[str, ...] = ()) -> QuestionItem:
    return QuestionItem(id_, text, answers or (text,), images=images, metric="verbatim")


def asker(n_slots: int) -> tuple[FakeEngine, SlotAsker]:
    engine = FakeEngine(n_slots)
    plan = ContextPlan(n_ctx=20, n_short=20, n_long=None)
    return engine, SlotAsker(engine, FakePrompts(), plan, n_slots)  # type: ignore[arg-type]


TEXTS = ["long question", "a", "no!", "two", "x" * 21, "four"]


@pytest.mark.parametrize("n_slots", [1, 3, 8])
def test_every_answer_comes_with_its_place_whatever_ends_first(n_slots: int) -> None:
    engine, slots = asker(n_slots)
    said = dict(slots.ask([Asked(question(text, text), max_tokens=6) for text in TEXTS]))
    assert [said[n].text for n in range(6)] == ["long q", "a", "", "two", "", "four"]
    assert said[2].error == "not this one"
    assert "the prompt has 21 tokens" in (said[4].error or "")
    assert engine.most == min(n_slots, 4)


@pytest.mark.parametrize("n_engines", [1, 2, 3])
def test_engines_side_by_side_answer_in_the_order_asked(n_engines: int) -> None:
    parts = [
        [Asked(question(text, text), max_tokens=6) for text in TEXTS[n::n_engines]]
        for n in range(n_engines)
    ]
    told: list[str] = []
    engines, askers = zip(*(asker(2) for _ in range(n_engines)), strict=True)
    said = ask_side_by_side(askers, parts, lambda asked, one: told.append(asked.item.id))
    for n, part in enumerate(said):
        expected = ["long q", "a", "", "two", "", "four"][n::n_engines]
        assert [one.text for one in part] == expected
    assert sorted(told) == sorted(TEXTS)
    assert sum(engine.n_submitted for engine in engines) == 4, "two are refused when they are given"


def test_when_one_engine_fails_the_others_are_stopped() -> None:
    (broken, first), (other, second) = asker(1), asker(1)
    stopped = threading.Event()

    def fail() -> list[tuple[int, Event]]:
        raise NativeError("the library failed")

    def wait() -> list[tuple[int, Event]]:
        assert stopped.wait(10)
        raise Cancelled("stopped")

    broken.step, other.step = fail, wait  # type: ignore[method-assign]
    other.interrupt = stopped.set
    broken.interrupt = lambda: None
    part = [Asked(question("q", "q"), max_tokens=2)]
    with pytest.raises(NativeError, match="the library failed"):
        ask_side_by_side([first, second], [part, part], lambda asked, one: None)
    assert stopped.is_set()


def abilities() -> list[Ability]:
    seen = (question("p", "cat", images=("a.png",)), question("q", "dog", images=("b.png",)))
    told = (question("t", "yes"), question("u", "no", "maybe"))
    return [
        Ability("see", "sees", "questions", seen, 9, 0.9),
        Ability("know", "knows", "questions", told, 9, None),
    ]


def test_what_is_asked_without_its_adapter_is_scored_apart() -> None:
    scores = [
        score_ability(ability, judged)
        for ability, judged in ask_abilities([asker(2)[1]], abilities(), "both")
    ]
    see, know = scores
    assert see.score is not None
    assert see.score_off is not None
    assert (see.score.value, see.score_off.value, see.is_reached) == (1, 0, True)
    assert know.score is not None
    assert (know.score.value, know.score_off, know.is_reached) == (0.5, None, None)
    lines = summary(scores).splitlines()
    assert lines[0].split() == ["ability", "items", "score", "bar", "adapter", "off"]
    assert ">= 90 %  reached" in lines[1]
    assert "100.0 % (34.2 to 100.0)" in lines[1]
    assert "0.0 % (0.0 to 65.8)" in lines[1]


def test_only_abilities_with_an_adapter_are_asked_without_it() -> None:
    ((ability, judged),) = ask_abilities([asker(2)[1]], abilities(), "off")
    assert ability.name == "see"
    assert [one.said for one in judged] == ["CAT", "DOG"]
    score = score_ability(ability, judged)
    assert (score.score, score.is_reached) == (None, None)


def test_items_are_asked_adapter_by_adapter_and_an_item_by_one_engine_alone() -> None:
    """The adapter switches rarely, and media that are encoded with it on are kept for it off."""
    asked: list[list[tuple[str, str | None]]] = [[], []]

    def noted(n: int) -> SlotAsker:
        engine, slots = asker(1)
        submit = engine.submit

        def note(prompt: FakePrompt, sampling: Any, adapter: str | None) -> int:
            asked[n].append((prompt.text, adapter))
            return submit(prompt, sampling, adapter)

        engine.submit = note  # type: ignore[method-assign]
        return slots

    ask_abilities([noted(0), noted(1)], abilities(), "both")
    assert asked[0] == [("yes", "auto"), ("cat", "auto"), ("cat", None)]
    assert asked[1] == [("no", "auto"), ("dog", "auto"), ("dog", None)]


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path, header = tmp_path / "answers.jsonl", {"task": "sample"}
    with AnswersFile(path, header) as kept:
        ask_abilities([asker(2)[1]], abilities(), "on", kept)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) == 1 + 4
    lines[1] = lines[1].replace('"text": "', '"text": "kept ')
    path.write_text("".join(lines[:3]) + lines[3][:20], encoding="utf-8")  # cut off in a line

    engine, slots = asker(2)
    told: list[tuple[int, int]] = []
    with AnswersFile(path, header) as kept:
        judged = ask_abilities([slots], abilities(), "both", kept, lambda *of: told.append(of))
    assert engine.n_submitted == 2 + 2, "two of those with the adapter on, and those with it off"
    said = [one.said for _, answers in judged for one in answers]
    assert sorted(said) == ["CAT", "DOG", "cat", "dog", "kept no", "yes"]
    assert told[0] == (2, 6)
    assert told[-1] == (6, 6)


Sample = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sample(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> Sample:
    """Runs the task on a random model."""

    def ask(*flags: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run("eval", "sample", *flags, "-m", tiny_path, "-t", 1)
        return (code, *capsys.readouterr())

    return ask


@pytest.mark.slow
def test_the_table_the_record_and_the_details(sample: Sample, tmp_path: Path) -> None:
    record, details = tmp_path / "record.json", tmp_path / "details.jsonl"
    code, out, _ = sample(SET, "--limit", 1, "-np", 3, "--json", "-o", record, "--details", details)
    assert code == 0
    found = json.loads(out)
    assert [ability["name"] for ability in found["abilities"]][:3] == ["read", "speech", "spoken"]
    for ability in found["abilities"]:
        assert ability["n_items"] == 1
        assert 0 <= ability["score"]["low"] <= ability["score"]["value"]
        has_adapter = ability["name"] in ("read", "speech", "spoken", "typed")
        assert (ability["score_off"] is not None) == has_adapter
    written = json.loads(record.read_text(encoding="utf-8"))
    assert written["result"] == found
    assert written["machine"]["version"] == __version__
    lines = [json.loads(line) for line in details.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 9 + 4
    read = [line for line in lines if line["ability"] == "read"]
    assert [line["is_adapter_on"] for line in read] == [True, False]
    assert read[0]["said"] != read[1]["said"]


def test_an_item_that_cannot_be_asked_is_named_at_the_end(sample: Sample, tmp_path: Path) -> None:
    items = [{"image": "absent.png", "question": "?", "answers": ["x"], "id": "lost"}]
    items.append({"question": "?", "answers": ["x"], "id": "fine"})
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(i) + "\n" for i in items))
    entry = {"name": "x", "title": "X", "kind": "questions", "manifest": "x.jsonl"}
    entry |= {"max_tokens": 2, "bar": 0.5}
    index = {"phi4mm_abilities": 1, "abilities": [entry]}
    (tmp_path / "abilities.json").write_text(json.dumps(index))
    code, out, err = sample(tmp_path, "--adapter", "on")
    assert code == 2
    assert "failed: lost:" in out
    assert "1 items could not be asked" in err.splitlines()[-1]


def test_a_merged_adapter_cannot_be_switched_off(
    checkpoint_dir: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert_checkpoint(checkpoint_dir("tiny"), tmp_path, merge="vision")
    assert run("eval", "sample", SET, "-m", tmp_path) == 2
    assert "--adapter is both, must be on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["absent"], "abilities.json: cannot be read"),
        ([SET, "--limit", 0], "--limit is 0"),
        ([SET, "-np", 0], "-np/--parallel is 0"),
        ([SET, "--engines", 0], "--engines is 0"),
        ([SET, "--engines", 9999], "--engines is 9999, must be 1 to 64"),
    ],
)
def test_bad_settings_are_refused(sample: Sample, flags: list[object], message: str) -> None:
    code, out, err = sample(*flags)
    assert (code, out) == (2, "")
    assert message in err
