"""What a start costs: which modules it imports, for times differ from machine to machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from phi4mm.cli.main import VERBS, _verbs_of

HEAVY = {
    "PIL", "aiohttp", "asyncio", "cffi", "http.client", "llguidance", "numpy", "soundfile", "soxr",
    "tokenizers", "urllib.request",
}  # fmt: skip


def imported_by(code: str) -> set[str]:
    """Modules that a fresh interpreter has after some lines, and had not before."""
    script = f"import sys; before = set(sys.modules)\n{code}\nprint(*sys.modules.keys() - before)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.splitlines()[-1].split())


def test_the_package_imports_nothing_but_itself() -> None:
    ours = {name for name in imported_by("import phi4mm") if name.startswith("phi4mm")}
    assert ours == {"phi4mm"}
    assert not HEAVY & imported_by("import phi4mm")


def test_help_imports_nothing_heavy() -> None:
    imported = imported_by(
        "from phi4mm.cli.main import build_parser; build_parser().format_help(); print()"
    )
    assert not HEAVY & imported
    assert {f"phi4mm.cli.{verb}" for verb in VERBS} <= imported
    foreign = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert foreign == {"phi4mm"}


def test_a_verb_imports_no_other_verb() -> None:
    imported = imported_by(
        "from phi4mm.cli.main import main\ntry: main(['run', '--help'])\nexcept SystemExit: print()"
    )
    assert {f"phi4mm.cli.{verb}" for verb in VERBS} & imported == {"phi4mm.cli.run"}
    assert not HEAVY & imported


def test_loading_a_model_imports_no_optional_part() -> None:
    imported = imported_by("import phi4mm.api")
    assert not {"PIL.ImageShow", "aiohttp", "asyncio", "llguidance"} & imported


@pytest.mark.parametrize(
    ("words", "verbs"),
    [
        (["run", "-p", "chat"], ["run"]),
        (["-v", "chat", "--help"], ["chat"]),
        ([], VERBS),
        (["--help"], VERBS),
        (["jump"], VERBS),
    ],
)
def test_only_the_verb_that_is_named_is_made_ready(words: list[str], verbs: list[str]) -> None:
    assert list(_verbs_of(words)) == list(verbs)
