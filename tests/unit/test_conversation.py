"""Conversations as values, and as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phi4mm.chat.savefile import load_conversation, save_conversation
from phi4mm.errors import InputError
from phi4mm.modality import Mode
from phi4mm.prompt.conversation import Conversation, Turn
from phi4mm.prompt.message import AudioPart, ImagePart, Message, TextPart, user_message

HELLO = Conversation().asking(user_message("Hello")).answered("Hi.")


def roles(conversation: Conversation) -> list[str]:
    return [message.role for message in conversation.messages]


class TestChanges:
    def test_messages_in_order(self) -> None:
        conversation = HELLO.with_system("Be brief.").asking(user_message("And?"))
        assert roles(conversation) == ["system", "user", "assistant", "user"]
        assert conversation.messages[2].parts == (TextPart("Hi."),)

    def test_a_change_leaves_the_old_one(self) -> None:
        HELLO.asking(user_message("And?")).answered("So.").cleared()
        assert roles(HELLO) == ["user", "assistant"]

    def test_asking_again(self) -> None:
        again = HELLO.unanswered()
        assert roles(again) == ["user"]
        assert again.answered("Hi.") == HELLO

    def test_taking_back(self) -> None:
        assert HELLO.undone() == Conversation()

    def test_clearing_keeps_the_system_message(self) -> None:
        assert roles(HELLO.with_system("Be brief.").cleared()) == ["system"]
        assert roles(HELLO.with_system(None).cleared()) == []

    def test_the_oldest_goes_first_and_the_last_stays(self) -> None:
        two = HELLO.asking(user_message("And?"))
        assert two.without_oldest().messages == [user_message("And?")]
        with pytest.raises(InputError, match="no older turn"):
            HELLO.without_oldest()

    @pytest.mark.parametrize("change", ["undone", "unanswered"])
    def test_nothing_to_take_back(self, change: str) -> None:
        with pytest.raises(InputError, match="nothing has been asked"):
            getattr(Conversation(), change)()

    def test_two_questions_in_a_row_are_refused(self) -> None:
        with pytest.raises(InputError, match="no answer yet"):
            HELLO.unanswered().asking(user_message("And?"))

    def test_one_picture_anywhere_decides_the_mode(self) -> None:
        assert HELLO.mode == Mode(None, None)
        seen = Conversation().asking(user_message(images=[b"x"])).answered("A cat.")
        assert seen.asking(user_message("And?")).mode.adapter == "vision"
        heard = seen.asking(user_message(audios=[b"y"]))
        assert heard.mode == Mode("vision", "vision")


MEDIA = Conversation(
    "Be brief.",
    (
        Turn(
            Message("user", (ImagePart(b"\x00\xffpng"), AudioPart(b"wav"), TextPart("Was? ✓"))),
            "Nichts.",
            ("a b.png", "c.wav"),
        ),
        Turn(user_message("Again?"), None),
    ),
)


class TestFiles:
    @pytest.mark.parametrize("conversation", [Conversation(), HELLO, MEDIA])
    def test_what_is_saved_is_loaded(self, conversation: Conversation, tmp_path: Path) -> None:
        path = tmp_path / "chat.json"
        save_conversation(path, conversation)
        assert load_conversation(path) == conversation
        assert list(tmp_path.iterdir()) == [path]

    def test_a_saved_one_is_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "chat.json"
        save_conversation(path, MEDIA)
        save_conversation(path, HELLO)
        assert load_conversation(path) == HELLO

    def test_another_file_is_not_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "thesis.txt"
        path.write_text("years of work")
        with pytest.raises(InputError, match="is not a saved conversation"):
            save_conversation(path, HELLO)
        assert path.read_text() == "years of work"

    def test_places_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be written"):
            save_conversation(tmp_path / "absent" / "chat.json", HELLO)
        with pytest.raises(InputError, match="cannot be read"):
            load_conversation(tmp_path / "absent.json")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda d: d.update(format="other"), "is not a saved conversation"),
            (lambda d: d.update(version=2), "has version 2, this program reads 1"),
            (lambda d: d.pop("turns"), "is damaged at 'turns'"),
            (lambda d: d.update(turns={}), "is damaged at 'turns', which is dict"),
            (lambda d: d.update(system=3), "is damaged at 'system', which is int"),
            (lambda d: d["turns"][0].update(answer=None), "is damaged at 'answer'"),
            (lambda d: d["turns"][0].update(question=["x"]), "is damaged at"),
            (lambda d: d["turns"][0]["question"][0].update(type="video"), "'video'"),
            (lambda d: d["turns"][0]["question"][0].update(data="§"), "'a b.png': is not base64"),
            (lambda d: d["turns"][0]["question"][0].pop("data"), "is damaged at 'data'"),
        ],
    )
    def test_damaged_files_are_refused_by_field(
        self, change: Any, message: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "chat.json"
        save_conversation(path, MEDIA)
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
        with pytest.raises(InputError, match=message) as caught:
            load_conversation(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[1, 2", b"null", b"[" * 100_000])
    def test_any_bytes_are_refused(self, data: bytes, tmp_path: Path) -> None:
        path = tmp_path / "chat.json"
        path.write_bytes(data)
        with pytest.raises(InputError, match="is not a saved conversation"):
            load_conversation(path)


@pytest.mark.parametrize("make", [
    lambda text: Turn(user_message("hi"), text),
    lambda text: Conversation(text),
])  # fmt: skip
def test_half_a_surrogate_pair_is_refused_where_it_comes_in(make: Any) -> None:
    make("\U0001f600")
    with pytest.raises(InputError, match="not valid Unicode at character 1: give UTF-8 text"):
        make("a\ud83d")
