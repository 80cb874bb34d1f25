"""Tool calls in answers: however the text is cut, the same calls and the same text come out."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phi4mm.prompt.tool_call import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    TextDelta,
    ToolCallParser,
)

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
    """(text, calls with the text of their arguments) of an answer given in pieces."""
    parser = ToolCallParser(**settings)
    text, calls, n_ended = "", [], 0
    for delta in [delta for piece in pieces for delta in parser.push(piece)] + parser.finish():
        if isinstance(delta, TextDelta):
            text += delta.text
        elif isinstance(delta, CallStart):
            assert n_ended == len(calls), "one call at a time"
            calls.append((delta.name, ""))
        elif isinstance(delta, ArgumentsDelta):
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
        else:
            n_ended += 1
    assert len(calls) - n_ended == parser.is_cut_off
    return text, calls


def written(calls):
    return [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]


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
    ('functools[{"name": "f", "argum', None, []),
    ('functools[{"name": "f"', None, []),
    ("functools[", None, []),
    (f"functools[functools{listed(('f', {}))}", "functools[", [("f", {})]),
    ("<|tool_call|> ", None, []),
    ('Well, functools[{"arguments": {"a": 1}, "name": "f"}]', "Well, ", [("f", {"a": 1})]),
    ('functools[{"name": "f", "arguments": {}, "id": "x}"}] ok', " ok", [("f", {})]),
    ('functools[{"name": "f", "arguments": {}} {]', " {]", [("f", {})]),
    ('functools[{"name": "f", "arguments": {}}, 5]', ", 5]", [("f", {})]),
    ('functools[{"name": "f", "arguments": {}} is it', " is it", [("f", {})]),
    ('functools[{"name": "f", "arguments": {}, "id": 1', ', "id": 1', [("f", {})]),
    ('functools[{"name": "\\x", "arguments": {}}]', None, []),
    ('functools[{"name": "f", "arguments": "{}"}]', None, []),
    (f"<|tool_call|>{listed(('f', {}))} and <|/tool_call|>", " and <|/tool_call|>", [("f", {})]),
    ("a < b <| c", "a < b <| c", []),
    (listed(("f", {})), listed(("f", {})), []),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "text", "calls"), ANSWERS)
def test_whole(answer, text, calls):
    assert parse([answer]) == (answer if text is None else text, written(calls))


CUT_OFF = [
    ('functools[{"name": "f", "arguments": {"a": "cut of', [("f", '{"a": "cut of')]),
    ('<|tool_call|>[{"name": "f", "arguments": {', [("f", "{")]),
    (
        'functools[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"b": [',
        [("f", "{}"), ("g", '{"b": [')],
    ),
]


@pytest.mark.parametrize(("answer", "calls"), CUT_OFF)
def test_arguments_that_break_off_are_given_as_far_as_they_came(answer, calls):
    for pieces in ([answer], list(answer)):
        assert parse(pieces) == ("", calls)


def test_arguments_come_as_they_are_written():
    parser = ToolCallParser()
    assert parser.push('functools[{"name": "f", "arguments": {"pla') == [
        CallStart("f"),
        ArgumentsDelta('{"pla'),
    ]
    assert parser.push('ce": "}"') == [ArgumentsDelta('ce": "}"')]
    assert parser.push("}}, {") == [ArgumentsDelta("}"), CallEnd()]
    assert parser.push('"name": "g", "arguments": {') == [CallStart("g"), ArgumentsDelta("{")]
    assert parser.is_cut_off


@pytest.mark.parametrize("answer", [answer for answer, _, _ in ANSWERS])
def test_split_anywhere(answer):
    whole = parse([answer])
    assert parse(list(answer)) == whole
    for cut in range(len(answer)):
        assert parse([answer[:cut], answer[cut:]]) == whole


FRAGMENTS = st.sampled_from([
    "functools", "<|tool_call|>", "<|/tool_call|>", "[", "]", "{", "}", ",", " ", '"', "\\", "a",
    '{"name": "f", "arguments": ', '{"b": "]}"}', '"name"', ":", "{}}", "<|", "func",
])  # fmt: skip


@given(fragments=st.lists(FRAGMENTS, max_size=12), is_bare=st.booleans())
@example(fragments=[" ", '{"name": "f", "arguments": ', "{"], is_bare=True)
@settings(max_examples=200, deadline=None)
def test_whatever_is_written_the_cuts_do_not_show(fragments, is_bare):
    answer = "".join(fragments)
    whole = parse([answer], accept_bare=is_bare)
    assert parse(list(answer), accept_bare=is_bare) == whole
    assert parse(fragments, accept_bare=is_bare) == whole


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
