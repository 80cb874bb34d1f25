"""The chat without a terminal: lines, completion, sessions, what is cached, what errors leave."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from phi4mm import Phi4MM, SamplingParams, user_message
from phi4mm.chat.command import Command, Drop, Words, file_arguments, parse_line
from phi4mm.chat.completion import ChatCompleter, complete_path
from phi4mm.chat.preview import colour_depth, half_blocks
from phi4mm.chat.repl import Repl
from phi4mm.chat.session import Session
from phi4mm.chat.terminal import PlainTerminal
from phi4mm.engine.event import Event
from phi4mm.errors import InputError
from phi4mm.prompt import medium

MEDIA = Path(__file__).parents[1] / "data" / "media"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files of awkward names, which is also the home folder."""
    for name in ("cat.png", "my cat.png", "it's.png", "notes", "sub dir/a.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


class TestLines:
    @pytest.mark.parametrize(
        ("line", "meant"),
        [
            ("Hello", Words("Hello")),
            ("  two\nlines ", Words("two\nlines")),
            ("/stats", Command("stats", "")),
            ("/system  Be brief. ", Command("system", "Be brief.")),
            ("//etc is a folder", Words("/etc is a folder")),
            ("cat.png", Drop((Path("cat.png"),))),
            ("./cat.png", Drop((Path("cat.png"),))),
            ("my cat.png", Drop((Path("my cat.png"),))),
            ("my\\ cat.png", Drop((Path("my cat.png"),))),
            ("'my cat.png'", Drop((Path("my cat.png"),))),
            ('"it\'s.png"', Drop((Path("it's.png"),))),
            ("it's.png", Drop((Path("it's.png"),))),
            ("cat.png 'my cat.png'", Drop((Path("cat.png"), Path("my cat.png")))),
            ("'sub dir'/a.wav", Drop((Path("sub dir/a.wav"),))),
            ("./absent.png", Drop((Path("absent.png"),))),
            ("/tmp/absent/cat.png", Drop((Path("/tmp/absent/cat.png"),))),
            ("notes", Words("notes")),
            ("absent.png", Words("absent.png")),
            ("cat.png is nice", Words("cat.png is nice")),
            ("Is 3.14 pi?", Words("Is 3.14 pi?")),
            ("https://example.org/cat.png", Words("https://example.org/cat.png")),
            ("don't", Words("don't")),
            ("and/or", Words("and/or")),
        ],
    )
    def test_meaning(self, folder: Path, line: str, meant: object) -> None:
        assert parse_line(line) == meant

    def test_home_and_file_urls(self, folder: Path) -> None:
        cat = folder / "my cat.png"
        for line in ("~/my cat.png", "'~/my cat.png'", f"file://{folder}/my%20cat.png"):
            assert parse_line(line) == Drop((cat,))

    def test_unknown_commands_are_named(self) -> None:
        with pytest.raises(InputError, match="/imgae: no such command; /help"):
            parse_line("/imgae cat.png")

    @pytest.mark.parametrize(
        ("rest", "names"),
        [
            ("my cat.png", ["my cat.png"]),
            ("cat.png my\\ cat.png", ["cat.png", "my cat.png"]),
            ("'my cat.png' cat.png", ["my cat.png", "cat.png"]),
            ("it's.png", ["it's.png"]),
            ("not there.png", ["not there.png"]),
            ("cat.png absent.png", ["cat.png", "absent.png"]),
        ],
    )
    def test_files_of_a_command(self, folder: Path, rest: str, names: list[str]) -> None:
        assert file_arguments(rest) == list(map(Path, names))

    @pytest.mark.parametrize("rest", ["", "'my cat.png"])
    def test_files_that_cannot_be_read_out(self, folder: Path, rest: str) -> None:
        with pytest.raises(InputError, match=r"name a file|not closed"):
            file_arguments(rest)


def completed(line: str) -> set[str]:
    """What the line becomes with each completion."""
    completions = ChatCompleter().get_completions(Document(line), CompleteEvent())
    return {line[: len(line) + c.start_position] + c.text for c in completions}


class TestCompletion:
    def test_commands(self) -> None:
        assert completed("/s") == {"/system", "/save", "/set", "/stats"}
        assert completed("/set top") == {"/set top-k=", "/set top-p="}

    @pytest.mark.parametrize(
        ("line", "whole"),
        [
            ("/image ca", {"/image cat.png"}),
            ("/image my", {"/image my\\ cat.png"}),
            ("/image my\\ c", {"/image my\\ cat.png"}),
            ('/image "my c', {'/image "my cat.png"'}),
            ("/image 'my", {"/image 'my cat.png'"}),
            ("/image it", {"/image it\\'s.png"}),
            ("/image cat.png s", {"/image cat.png sub\\ dir/"}),
            ("/image sub\\ dir/", {"/image sub\\ dir/a.wav"}),
            ('/audio "sub dir/', {'/audio "sub dir/a.wav"'}),
            ("/image ~/ca", {"/image ~/cat.png"}),
            ("~/my", {"~/my\\ cat.png"}),
            ("./no", {"./notes"}),
            ("/image absent", set()),
            ("/image absent/", set()),
            ("Hello no", set()),
        ],
    )
    def test_paths(self, folder: Path, line: str, whole: set[str]) -> None:
        assert completed(line) == whole

    def test_absolute_paths(self, folder: Path) -> None:
        assert completed(f"{folder}/ca") == {f"{folder}/cat.png"}

    def test_what_is_completed_can_be_read(self, folder: Path) -> None:
        for start in ("/image my", "/image 'my", "/image it", '/image "it'):
            (line,) = completed(start)
            command = parse_line(line)
            assert isinstance(command, Command)
            assert all(path.exists() for path in file_arguments(command.rest))

    def test_folders_that_cannot_be_read(self) -> None:
        assert list(complete_path("/proc/1/fd/")) == [] or os.geteuid() == 0


class TestPreview:
    def test_two_pixels_to_a_character(self) -> None:
        image = Image.new("RGB", (2, 2), "red")
        image.paste("blue", (0, 1, 2, 2))
        cell = "\x1b[38;2;255;0;0m\x1b[48;2;0;0;255m▀"
        assert half_blocks(image, "truecolor") == [cell * 2 + "\x1b[0m"]
        assert half_blocks(image, "256")[0].startswith("\x1b[38;5;196m\x1b[48;5;21m▀")

    @pytest.mark.parametrize("size", [(1, 1), (3, 1), (1, 999), (9999, 30)])
    def test_any_shape_stays_small(self, size: tuple[int, int]) -> None:
        lines = half_blocks(Image.new("RGB", size), "256")
        assert 1 <= len(lines) <= 12
        assert 1 <= lines[0].count("▀") <= 32

    @pytest.mark.parametrize(
        ("environment", "depth"),
        [
            ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "truecolor"),
            ({"TERM": "xterm-256color"}, "256"),
            ({"TERM": "vt100"}, None),
            ({"TERM": "dumb", "COLORTERM": "truecolor"}, None),
            ({"TERM": "xterm-256color", "NO_COLOR": "1"}, None),
            ({}, None),
        ],
    )
    def test_colours(self, environment: dict[str, str], depth: str | None) -> None:
        assert colour_depth(environment) == depth


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> Iterator[Phi4MM]:
    with Phi4MM(tiny_path, n_ctx=2048, n_threads=1) as model:
        yield model


def run(events: Iterator[Event], cancel: Callable[[], None]) -> Generator[Event, None, None]:
    yield from events


def new_session(model: Phi4MM, n: int = 4, shift: str = "off") -> Session:
    return Session(model, run, SamplingParams(max_tokens=n), shift)  # type: ignore[arg-type]


def ask(session: Session, text: str) -> list[str]:
    """The remarks made while it is answered."""
    remarks: list[str] = []
    for _ in session.ask(text, remarks.append):
        pass
    return remarks


def usage(session: Session) -> tuple[int, int]:
    """(cached, prompt) tokens of the last answer."""
    assert session.last is not None
    found = session.last.event.usage
    return found.n_cached, found.n_prompt


class TestSession:
    def test_a_follow_up_computes_only_what_is_new(self, model: Phi4MM) -> None:
        session = new_session(model)
        (chip,) = session.attach(MEDIA / "picture.png")
        assert chip.chip == "picture.png · 640x400 · 2 + 1 crops · 705 tokens"
        ask(session, "What is this?")
        ask(session, "Which colour?")
        n_cached, n_prompt = usage(session)
        assert n_cached > 705
        assert n_prompt - n_cached < 40
        assert session.last is not None
        assert session.last.event.timings.encode_s == 0

    def test_media_are_not_decoded_again_for_a_follow_up(
        self, model: Phi4MM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decoded: list[str] = []

        def count(function: str) -> None:
            load = getattr(medium, function)

            def counted(*args: object, **settings: object) -> Any:
                decoded.append(function)
                return load(*args, **settings)

            monkeypatch.setattr(medium, function, counted)

        count("load_image")
        count("load_audio")
        picture = tmp_path / "new.png"
        Image.new("RGB", (300, 200), "teal").save(picture)
        session = new_session(model, shift="oldest")
        session.attach(picture)
        session.attach(MEDIA / "clip.flac")
        assert sorted(decoded) == ["load_audio", "load_image"]
        ask(session, "What are these?")
        decoded.clear()
        for _ in range(3):
            ask(session, "And now?")
        session.save(tmp_path / "talk.json")
        assert decoded == []
        session.load(tmp_path / "talk.json")
        ask(session, "Again?")
        assert decoded == []

    def test_the_first_picture_and_clip_are_said_to_change_everything(self, model: Phi4MM) -> None:
        session = new_session(model)
        ask(session, "Hello")
        session.attach(MEDIA / "clip.flac")
        (remark,) = ask(session, "What do you hear?")
        assert remark.startswith("from no to speech adapter")
        assert usage(session)[0] == 0
        session.attach(MEDIA / "picture.png")
        (remark,) = ask(session, "And see?")
        assert remark.startswith("from speech to vision adapter")
        assert usage(session)[0] == 0
        assert ask(session, "Again?") == []
        assert usage(session)[0] > 0

    def test_everything_attached_reaches_the_model_in_order(self, model: Phi4MM) -> None:
        session = new_session(model, n=1)
        for name in ("picture.png", "clip.flac", "picture.png"):
            session.attach(MEDIA / name)
        ask(session, "")
        assert session.last is not None
        assert session.last.event.usage.n_image == 2 * 705
        assert session.last.event.usage.n_audio == 38
        (turn,) = session.conversation.turns
        assert turn.names == ("picture.png", "clip.flac", "picture.png")
        assert session.pending == ()

    def test_a_refused_question_changes_nothing(self, model: Phi4MM) -> None:
        session = new_session(model)
        session.attach(MEDIA / "clip.flac")
        ask(session, "First")
        session.attach(MEDIA / "clip.flac")
        before = session.conversation
        with pytest.raises(
            InputError, match=r"needs \d+ tokens and it holds 2048; /clear or /undo"
        ):
            ask(session, "long " * 2000)
        assert session.conversation == before
        assert len(session.pending) == 1

    def test_a_stopped_answer_is_kept_as_far_as_it_got(self, model: Phi4MM) -> None:
        session = new_session(model, n=200)
        answer = session.ask("Hello", print)
        text = next(answer).text + next(answer).text
        answer.close()  # type: ignore[attr-defined]
        assert session.conversation.turns[0].answer == text
        ask(session, "Go on")
        assert len(session.conversation.turns) == 2

    def test_asking_again_replaces_the_answer(self, model: Phi4MM) -> None:
        session = new_session(model)
        ask(session, "Hello")
        session.attach(MEDIA / "clip.flac")
        for _ in session.ask_again(print):
            pass
        assert len(session.conversation.turns) == 1
        assert len(session.pending) == 1

    def test_oldest_turns_make_room_and_it_is_said(self, tiny_path: Path) -> None:
        with Phi4MM(tiny_path, n_ctx=256, n_threads=1) as small:
            session = new_session(small, shift="oldest")
            remarks = [
                line for n in range(6) for line in ask(session, f"number {n} " + "word " * 12)
            ]
            assert remarks
            assert all("of 256 tokens): dropped the oldest" in line for line in remarks)
            assert 1 < len(session.conversation.turns) < 6
            assert usage(session)[1] <= 224
            with pytest.raises(InputError, match="the context is full"):
                ask(session, "word " * 300)

    def test_a_full_context_ends_the_answer_and_says_so(self, tiny_path: Path) -> None:
        with Phi4MM(tiny_path, n_ctx=32, n_threads=1) as small:
            session = Session(small, run, SamplingParams(temperature=2, seed=1))
            out, err = chat(session, "Hello\n/stats\n")
            assert out.strip()
            if session.last is not None and session.last.event.finish_reason == "length":
                assert "the context is full (32 tokens), the answer ends here" in err
                assert "context: 33 of 32 tokens" in err

    def test_outgrowing_the_original_context_shows_in_the_stats(self, model: Phi4MM) -> None:
        n_orig = model.bundle.decoder.hparams.n_ctx_orig
        words = "a b " * (n_orig // 2)
        while model.prompts.chat([user_message(words)]).n_tokens > n_orig - 2:
            words = words[:-4]
        session = Session(model, run, SamplingParams(max_tokens=64, temperature=2, seed=3))
        _, remarks = chat(session, f"{words}\n/stats\nAnd?\n/stats\n")
        assert f"the original context, {n_orig} tokens were computed again" in remarks
        assert remarks.count("RoPE:") == 1
        assert remarks.count("long RoPE factors") == 2

    def test_outgrowing_it_between_two_answers_shows_too(self, model: Phi4MM) -> None:
        session = new_session(model)
        _, remarks = chat(session, f"{'x y ' * 300}\n{'c d ' * 300}\n/stats\n")
        assert re.search(r"the original context, \d{3} tokens were computed again", remarks)
        assert usage(session)[0] < 10


def chat(session: Session, lines: str) -> tuple[str, str]:
    """(answers, remarks) of a chat through a pipe."""
    answers, remarks = io.StringIO(), io.StringIO()
    repl = Repl(session, PlainTerminal(io.StringIO(lines), answers, remarks))
    repl.run()
    return answers.getvalue(), remarks.getvalue()


class TestCommands:
    def remarks(self, session: Session, *lines: str) -> list[str]:
        return chat(session, "\n".join(lines) + "\n")[1].splitlines()

    def test_errors_are_lines_and_never_the_end(self, model: Phi4MM, tmp_path: Path) -> None:
        broken = tmp_path / "broken.png"
        broken.write_bytes((MEDIA / "picture.png").read_bytes()[:300])
        (tmp_path / "empty.wav").touch()
        session = new_session(model)
        answers, remarks = chat(
            session,
            f"/image {tmp_path}/absent file.png\n{broken}\n/audio {tmp_path}/empty.wav\n/bogus\n"
            f"/image {MEDIA}/clip.flac\n/load {broken}\n/set temp=-1\n/set temp=hot\n/set x=1\n"
            "/undo\n/regen\n/save\n/image 'open\n/image --pages 0 a.pdf\nHello\n",
        )  # fmt: skip
        lines = remarks.splitlines()
        assert len(lines) == 14
        assert all(line.startswith("error: ") for line in lines)
        for line, message in zip(
            lines,
            ["absent file.png: no such file", "broken.png: PNG picture is damaged",
             "empty.wav: has 0 bytes", "no such command", "clip.flac: is not a picture",
             "is not a saved conversation", "temp is -1.0", "give a number", "write one of",
             "nothing has been asked", "nothing has been asked", "name one file", "not closed",
             "write numbers from 1"],
            strict=True,
        ):  # fmt: skip
            assert message in line
        assert answers.strip()

    def test_what_may_never_end_is_not_read(self, model: Phi4MM, tmp_path: Path) -> None:
        huge = tmp_path / "huge.wav"
        with huge.open("wb") as file:
            file.truncate((1 << 30) + 1)  # takes no room on disk
        os.mkfifo(tmp_path / "pipe")
        session = new_session(model)
        lines = self.remarks(
            session, "/image /dev/zero", "/audio /dev/zero", f"/audio {huge}",
            f"/load {tmp_path}", "/load /dev/zero", f"/load {tmp_path}/pipe",
        )  # fmt: skip
        for line, message in zip(
            lines,
            ["/dev/zero: is a device", "/dev/zero: is a device", "huge.wav: has 1073741825 bytes",
             "is no file", "/dev/zero: is no file", "pipe: is no file"],
            strict=True,
        ):  # fmt: skip
            assert message in line
        assert session.pending == ()

    def test_a_saved_picture_that_is_damaged_names_the_file(
        self, model: Phi4MM, tmp_path: Path
    ) -> None:
        saved = tmp_path / "chat.json"
        part = {"type": "image", "name": "a.png", "data": "AAAA"}
        turns = [{"question": [part], "answer": "x"}]
        head = {"format": "phi4mm-conversation", "version": 1, "system": None}
        saved.write_text(json.dumps({**head, "turns": turns}))
        (line,) = self.remarks(new_session(model), f"/load {saved}")
        assert line.startswith(f"error: {saved}: ")
        assert "is not a picture" in line

    def test_settings(self, model: Phi4MM) -> None:
        session = new_session(model)
        (line,) = self.remarks(session, "/set temp=0.5 top-k=40 seed=7 n=none context-shift=oldest")
        assert line == ("temp=0.5 top-k=40 top-p=1.0 min-p=0.0 seed=7 n=none context-shift=oldest")
        assert session.sampling.temperature == 0.5
        assert session.sampling.max_tokens is None

    def test_system_message(self, model: Phi4MM) -> None:
        session = new_session(model)
        lines = self.remarks(session, "/system", "/system Be brief.", '/system ""')
        assert lines == ["system: none", "system: Be brief.", "system: none"]

    def test_save_and_load_bring_everything_back(self, model: Phi4MM, tmp_path: Path) -> None:
        first, second = new_session(model), new_session(model)
        saved = tmp_path / "a chat.json"
        self.remarks(first, str(MEDIA / "picture.png"), "What?", f"/save {saved}")
        lines = self.remarks(second, f"/load {saved}", "/stats")
        assert lines[:2] == [f"loaded 1 turn from {saved}", "[picture.png]"]
        assert second.conversation == first.conversation
        ask(second, "Which colour?")
        assert usage(second)[0] > 705

    def test_undo_clear_help_exit(self, model: Phi4MM) -> None:
        session = new_session(model)
        lines = self.remarks(session, "Hello", "/undo", "Hello", "/clear", "/exit", "/help")
        assert lines == ["0 turns remain", "cleared"]
        assert len(self.remarks(session, "/help")) == 13

    def test_lines_may_go_on(self, model: Phi4MM) -> None:
        session = new_session(model)
        chat(session, "one\\\ntwo\n\n\nthree")
        texts = [turn.question.parts[0].text for turn in session.conversation.turns]  # type: ignore[union-attr]
        assert texts == ["one\ntwo", "three"]

    def test_pages_of_a_document(self, model: Phi4MM, tmp_path: Path) -> None:
        pytest.importorskip("pypdfium2")
        for name in ("doc.pdf", "doc.tiff"):
            pages = [Image.new("RGB", (60, 60), colour) for colour in ("red", "green", "blue")]
            pages[0].save(tmp_path / name, save_all=True, append_images=pages[1:])
            session = new_session(model)
            lines = self.remarks(
                session, str(tmp_path / name), f"/image --pages 2-3 {tmp_path / name}"
            )
            assert lines[0] == (
                f"error: {tmp_path / name}: has 3 pages; choose some with --pages, such as 1-3"
            )
            assert [item.name for item in session.pending] == [f"{name} p. 2", f"{name} p. 3"]

    def test_the_first_frame_of_an_animation_is_said(self, model: Phi4MM, tmp_path: Path) -> None:
        frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "green", "blue")]
        frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
        (line,) = self.remarks(new_session(model), str(tmp_path / "a.gif"))
        assert line == "[a.gif · 40x40 · first of 3 frames · 1 + 1 crops · 545 tokens]"
