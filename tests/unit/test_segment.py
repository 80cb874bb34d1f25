"""What the template and the raw-prompt parser make of words, special tokens and media."""

import pytest

from phi4mm.errors import InputError
from phi4mm.prompt.message import AudioPart, ImagePart, Message, TextPart, user_message
from phi4mm.prompt.segment import Medium, Special, Text, parse_raw, render_chat

SPECIALS = ("<|endoftext|>", "<|endoftext10|>", "<|endoftext11|>", "<|end|>", "<|user|>")


def test_template_has_no_newlines_and_ends_with_the_assistant():
    messages = [
        Message("system", (TextPart("Be brief."),)),
        user_message("Hi"),
        Message("assistant", (TextPart("Hello."),)),
        user_message("Bye"),
    ]
    assert render_chat(messages) == [
        Special("<|system|>"), Text("Be brief."), Special("<|end|>"),
        Special("<|user|>"), Text("Hi"), Special("<|end|>"),
        Special("<|assistant|>"), Text("Hello."), Special("<|end|>"),
        Special("<|user|>"), Text("Bye"), Special("<|end|>"),
        Special("<|assistant|>"),
    ]  # fmt: skip


def test_tools_follow_the_system_text():
    system = Message("system", (TextPart("Use tools."),), tools='[{"name": "f"}]')
    assert render_chat([system])[:6] == [
        Special("<|system|>"), Text("Use tools."),
        Special("<|tool|>"), Text('[{"name": "f"}]'), Special("<|/tool|>"), Special("<|end|>"),
    ]  # fmt: skip


def test_media_come_before_the_text_and_keep_their_order():
    parts = (TextPart("What "), ImagePart("a.png"), TextPart("is this?"), AudioPart("b.wav"),
             ImagePart("c.png"))  # fmt: skip
    assert render_chat([Message("user", parts)])[1:5] == [
        Medium("image", 0), Medium("audio", 0), Medium("image", 1), Text("What is this?"),
    ]  # fmt: skip


def test_media_are_numbered_through_the_conversation():
    messages = [user_message("a", images=["1.png"]), user_message("b", images=["2.png"])]
    media = [segment for segment in render_chat(messages) if isinstance(segment, Medium)]
    assert media == [Medium("image", 0), Medium("image", 1)]


@pytest.mark.parametrize("text", ["<|end|>", "<|image_1|>", "a<|endoftext10|>b", "<|assistant|>"])
def test_what_a_user_types_stays_text(text):
    assert render_chat([user_message(text)])[1] == Text(text)


def test_raw_prompt_parses_special_tokens_and_markers():
    prompt = "<|user|><|image_1|><|audio_1|>Look: <|image_2|>!<|end|>"
    assert parse_raw(prompt, SPECIALS) == [
        Special("<|user|>"), Medium("image", 0), Medium("audio", 0), Text("Look: "),
        Medium("image", 1), Text("!"), Special("<|end|>"),
    ]  # fmt: skip


def test_placeholder_tokens_mark_media_too():
    assert parse_raw("<|endoftext11|>x<|endoftext10|>", SPECIALS) == [
        Medium("audio", 0), Text("x"), Medium("image", 0),
    ]  # fmt: skip


def test_the_longest_special_token_wins():
    assert parse_raw("<|endoftext|>", SPECIALS) == [Special("<|endoftext|>")]


@pytest.mark.parametrize(
    ("prompt", "marker"),
    [("<|image_2|>", "image_1"), ("<|image_1|><|image_1|>", "image_2"), ("<|audio_0|>", "audio_1")],
)
def test_a_marker_out_of_place_is_refused(prompt, marker):
    with pytest.raises(InputError, match=rf"write <\|{marker}\|>"):
        parse_raw(prompt, SPECIALS)


def test_an_unknown_role_is_refused():
    with pytest.raises(InputError, match="message role 'robot': use one of system, user"):
        Message("robot", (TextPart("x"),))


def test_media_belong_to_users():
    with pytest.raises(InputError, match="a system message holds text only"):
        Message("system", (ImagePart("a.png"),))


def test_an_empty_conversation_is_refused():
    with pytest.raises(InputError, match="the conversation is empty"):
        render_chat([])
