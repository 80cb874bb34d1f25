"""Tool calls in answers: however the text is cut, the same calls and the same text come out."""

import json

import pytest

from phi4mm.prompt.tool_call import TextDelta, ToolCall, ToolCallParser

NESTED = {
    "query": 'a]b"c',
    "filters": [{"ids": [[1, 2], [3]]}, {"name": "}{"}],
    "n": 1.5,
    "é": "日本",
}


def listed(*calls):
    return json.dumps(
        [{"name": name, "arguments": args} for name, args in calls], ensure_ascii=False
    )


def parse(pieces, **settings):
    """(text, calls) of an answer given in pieces."""
    parser = ToolCallParser(**settings)
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    calls = [
        (call.name, json.loads(call.arguments)) for call in deltas if isinstance(call, ToolCall)
    ]
    return text, calls


ANSWERS = [
    # (answer, text, calls)
    ("Hello.", "Hello.", []),
    ("", "", []),
    (f"functools{listed(('f', {}))}", "", [("f", {})]),
    (f"functools{listed(('f', NESTED))}", "", [("f", NESTED)]),
    (f"functools{listed(('f', {'a': 1}), ('g', NESTED))}", "", [("f", {"a": 1}), ("g", NESTED)]),
    (f"Let me see. functools{listed(('f', {}))} Done.", "Let me see.  Done.", [("f", {})]),
    (f"<|tool_call|>{listed(('f', NESTED))}<|/tool_call|>", "", [("f", NESTED)]),
    (f"<|tool_call|> {listed(('f', {}))}\n<|/tool_call|>ok", "ok", [("f", {})]),
    (f"<|tool_call|>{listed(('f', {}))}", "", [("f", {})]),
    (f"<|tool_call|>{listed(('f', {}))[1:-1]}<|/tool_call|>", "", [("f", {})]),
    (f"functools{listed(('f', {}))}functools{listed(('g', {}))}", "", [("f", {}), ("g", {})]),
    ("import functools\nfunctools.reduce(f, x)", "import functools\nfunctools.reduce(f, x)", []),
    ("functools[1, 2]", "functools[1, 2]", []),
    ("functools[{'name': 'f'}]", "functools[{'name': 'f'}]", []),
    ('functools[{"name": "f"}]', 'functools[{"name": "f"}]', []),
    ('functools[{"name": "f", "arguments": {"a": "cut of', None, []),
    ('<|tool_call|>[{"name": "f", "arguments": {', None, []),
    ("a < b <| c", "a < b <| c", []),
    (listed(("f", {})), listed(("f", {})), []),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "text", "calls"), ANSWERS)
def test_whole(answer, text, calls):
    assert parse([answer]) == (answer if text is None else text, calls)


@pytest.mark.parametrize("answer", [answer for answer, _, _ in ANSWERS])
def test_split_anywhere(answer):
    whole = parse([answer])
    assert parse(list(answer)) == whole
    for cut in range(len(answer)):
        assert parse([answer[:cut], answer[cut:]]) == whole


@pytest.mark.parametrize(
    "answer", [listed(("f", NESTED)), listed(("f", {}))[1:-1], " \n[{}]", "no"]
)
def test_a_bare_call_only_where_one_is_demanded(answer):
    assert parse([answer]) == (answer, [])
    text, calls = parse(list(answer), accept_bare=True)
    is_call = "name" in answer
    assert bool(calls) == is_call
    assert text == ("" if is_call else answer)


def test_text_before_a_bare_call_makes_it_text():
    answer = "Here: " + listed(("f", {}))
    assert parse([answer], accept_bare=True) == (answer, [])


def test_text_is_not_held_back_longer_than_a_marker():
    parser = ToolCallParser()
    assert parser.push("All is well, func") == [TextDelta("All is well, ")]
    assert parser.push("tion") == [TextDelta("function")]
