"""Flags: one line for an error, nothing dropped unseen, settings named as they were given."""

from __future__ import annotations

import argparse
import pickle

import pytest

from phi4mm.cli.main import build_parser
from phi4mm.cli.parser import _SETTINGS, Parser
from phi4mm.errors import SettingError


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="phi4mm run")
    group = parser.add_argument_group("model")
    group.add_argument("-c", "--ctx-size", type=int)
    group.add_argument("--image", action="append", default=[])
    parser.add_argument("--host", nargs="+")
    parser.add_argument("files", nargs="*")
    return parser


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-c", "1", "--ctx-size", "2"], "argument -c/--ctx-size: given twice: give it once"),
        (["-c1", "-c1"], "argument -c/--ctx-size: given twice: give it once"),
        (["--host", "a", "--host", "b"], "argument --host: given twice: give it once"),
        (["-c", "x\ny"], "argument -c/--ctx-size: invalid int value: 'x\\ny'"),
        (["--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_errors_are_one_line(
    parser: Parser, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(argv)
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"phi4mm: {message} (see phi4mm run --help)\n"


def test_what_may_be_repeated_is(parser: Parser) -> None:
    args = parser.parse_args(["--image", "a", "x", "--image", "b", "-c", "3"])
    assert (args.image, args.files, args.ctx_size) == (["a", "b"], ["x"], 3)
    assert parser.parse_args(["-c", "4"]).ctx_size == 4  # nothing is left of the last time


def test_a_setting_is_named_as_its_flag(parser: Parser) -> None:
    assert parser.in_flags(SettingError("n_ctx", "is 0: bad")) == "-c/--ctx-size is 0: bad"
    assert parser.in_flags(SettingError("n_batch", "is 0: bad")) == "n_batch is 0: bad"


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """What all verbs, and theirs, call their values."""
    found = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {flag for verb in action.choices.values() for flag in flags_of(verb)}
        elif action.option_strings:
            found.add(action.dest)
    return found


def test_every_setting_in_the_table_has_a_flag() -> None:
    assert set(_SETTINGS.values()) <= flags_of(build_parser())


def test_a_setting_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(SettingError("n_ctx", "is 0")))
    assert (str(error), error.name) == ("n_ctx is 0", "n_ctx")
