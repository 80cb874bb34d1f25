"""The shape of the package: imports flow down, and the public names can be had."""

import ast
from pathlib import Path

import pytest

import phi4mm

ROOT = Path(phi4mm.__file__).parent

# A package may import itself and what stands before it.
LAYERS = (
    {"errors", "modality"},
    {"json_lines", "markdown", "progress"},
    {"modelfile", "media"},
    {"native"},
    {"convert", "encoders", "prompt"},
    {"engine"},
    {"quantize"},
    {"pull"},
    {"chat", "transcribe"},
    {"api"},
    {"measurement"},
    {"inspection"},
    {"bench", "evals", "verify"},
    {"plan"},
    {"server"},
    {"deploy", "export", "upstream"},
    {"cli"},
)
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}


def modules():
    return sorted(path for path in ROOT.rglob("*.py") if not path.name.startswith("__"))


def imported_packages(path):
    """Packages of phi4mm that a module imports, at any depth of the code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("phi4mm."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("phi4mm."))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_flow_down(path):
    package = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for imported in imported_packages(path):
        assert imported == package or RANK[imported] < RANK[package], imported


@pytest.mark.parametrize("foreign", ["torch", "transformers", "scipy"])
def test_run_time_does_without(foreign):
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert foreign not in [name.split(".")[0] for name in names], path


def test_every_public_name_can_be_imported():
    for name in phi4mm.__all__:
        assert getattr(phi4mm, name) is not None


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = phi4mm.nothing
