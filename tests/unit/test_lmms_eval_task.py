"""The task for lmms-eval in `scripts/lmms_eval`, as far as it goes without lmms-eval."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
TASK = ROOT / "scripts" / "lmms_eval"
FIELDS = ("image", "audio", "question", "answers")


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("sample_task", TASK / "sample_task.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def docs() -> list[dict[str, Any]]:
    """The manifest as the data set library gives it: fields that a line lacks are None."""
    config = (TASK / "phi4mm_sample.yaml").read_text(encoding="utf-8")
    path = re.search(r"test: (\S+\.jsonl)", config)
    assert path is not None
    lines = (ROOT / path[1]).read_text(encoding="utf-8").splitlines()
    return [dict.fromkeys(FIELDS) | json.loads(line) for line in lines]


def test_every_medium_becomes_content(task: Any, docs: list[dict[str, Any]]) -> None:
    class Filtered(list):
        def filter(self, keep: Any) -> list[dict[str, Any]]:
            return [doc for doc in self if keep(doc)]

    chosen = task.with_media(Filtered(docs))
    assert {(doc["image"] is None, doc["audio"] is None) for doc in chosen} == {
        (False, True), (True, False), (False, False),
    }  # fmt: skip
    for doc in chosen:
        ((role, content),) = [(m["role"], m["content"]) for m in task.messages(doc)]
        assert role == "user"
        found = {part["type"]: part.get("url", part.get("text")) for part in content}
        assert ("image" in found) == (doc["image"] is not None)
        assert all(isinstance(found[kind], Image.Image) for kind in found if kind == "image")
        if doc["audio"] is not None:
            clip = base64.b64decode(found["audio"].partition(",")[2])
            assert clip[:4] == b"fLaC"
        assert found.get("text") == doc["question"]
        assert task.answer(doc) == doc["answers"][0]


def test_the_functions_that_the_task_names_exist(task: Any) -> None:
    config = (TASK / "phi4mm_sample.yaml").read_text(encoding="utf-8")
    names = re.findall(r"!function sample_task\.(\w+)", config)
    assert len(names) == 5
    assert all(callable(getattr(task, name)) for name in names)
