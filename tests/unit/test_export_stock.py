"""`phi4mm export ollama|lmstudio|llama.cpp`: what is written, and that stock llama.cpp takes it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import jinja2
import numpy as np
import pytest
from measured import run, sample_decoder, sample_name
from stock_server import StockServer

from phi4mm import Phi4MM
from phi4mm.cli.options import sample_bundle
from phi4mm.export.chat_template import CHAT_TEMPLATE
from phi4mm.export.ollama import GO_TEMPLATE
from phi4mm.modality import Adapter
from phi4mm.modelfile.bundle import Bundle
from phi4mm.prompt.segment import Special, Text, render_chat
from phi4mm.server import wire
from phi4mm.server.settings import Limits
from phi4mm.server.translate import messages_of

PROMPT = "<|user|>one two three<|end|><|assistant|>"
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "It's \"now\"",
     "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "time", "description": "", "parameters": {}}},
]  # fmt: skip
CALL = {"id": "1", "type": "function",
        "function": {"name": "weather", "arguments": '{"place": "Zürich"}'}}  # fmt: skip
CONVERSATIONS = {
    "one question": {"messages": [{"role": "user", "content": "Hi"}]},
    "a system message": {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    },
    "tools": {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS},
    "tools and a system message": {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "tools": TOOLS,
    },
    "a call and its result": {
        "messages": [
            {"role": "user", "content": "How warm is it?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "{\"celsius\": 21}"},
        ],
        "tools": TOOLS,
    },
}  # fmt: skip


def ours(request: dict[str, object]) -> str:
    """The prompt that this project makes of a request."""
    body = wire.TemplateRequest.model_validate_json(json.dumps(request))
    messages = messages_of(body, lambda url, kind: b"", Limits())
    return "".join(
        s.token if isinstance(s, Special) else s.text if isinstance(s, Text) else ""
        for s in render_chat(messages)
    )


def exported(out: Path, bundle: Path) -> list[str]:
    """The llama-server command of an export."""
    assert run("export", "llama.cpp", bundle, "-o", out) == 0
    script = (out / "llama-server.sh").read_text()
    command = script.removeprefix("#!/bin/sh\nexec ").replace("\\\n", "").replace('"$@"', "")
    return shlex.split(command)


@pytest.fixture(scope="module")
def bundle(bundle_dir: Callable[..., Path]) -> Path:
    return bundle_dir("tiny")


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockServer]:
    with StockServer(exported(tmp_path_factory.mktemp("export"), bundle)) as server:
        yield server


# ---- stock llama.cpp


def greedy(model: Phi4MM, adapter: Adapter | None, n: int) -> list[int]:
    """Ours, for as long as the choice is clear: near a tie rounding decides."""
    tokens: list[int] = []
    text = PROMPT
    for _ in range(n):
        logits = model.logits(text, adapter=adapter)[-1]
        second, first = np.sort(logits)[-2:]
        if first - second < 1e-2:
            break
        tokens.append(int(logits.argmax()))
        piece = model.tokenizer.token_bytes(tokens[-1])
        if not piece.isascii():
            break  # no whole character: the text cannot go on
        text += piece.decode()
    return tokens


@pytest.mark.parametrize("adapter", [None, "vision", "speech"])
def test_stock_answers_as_ours_with_each_adapter(
    server: StockServer, bundle: Path, adapter: Adapter | None
) -> None:
    lora = {} if adapter is None else {
        "lora": [{"id": ["vision", "speech"].index(adapter), "scale": 1}]
    }  # fmt: skip
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "return_tokens": True}
    theirs = server.post("/completion", body | lora)["tokens"]
    with Phi4MM(bundle, n_ctx=256, n_threads=1, kv_type="f32") as model:
        expected = greedy(model, adapter, 8)
    assert len(expected) >= 1
    assert theirs[: len(expected)] == expected


def test_the_adapters_make_a_difference(server: StockServer) -> None:
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "return_tokens": True}
    answers = [
        server.post("/completion", body | lora)["tokens"]
        for lora in ({}, {"lora": [{"id": 0, "scale": 1}]}, {"lora": [{"id": 1, "scale": 1}]})
    ]
    assert len(set(map(tuple, answers))) == 3


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_stock_lays_conversations_out_as_ours(server: StockServer, name: str) -> None:
    request = CONVERSATIONS[name]
    assert server.post("/apply-template", request)["prompt"] == ours(request)


def test_stock_chats(server: StockServer) -> None:
    answer = server.post("/v1/chat/completions", CONVERSATIONS["tools"] | {"max_tokens": 4})
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_transformers_would_lay_them_out_the_same(name: str) -> None:
    """Its Jinja has its own ``tojson``."""
    environment = jinja2.Environment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    request = CONVERSATIONS[name]
    text = environment.from_string(CHAT_TEMPLATE).render(
        messages=request["messages"], tools=request.get("tools"), add_generation_prompt=True
    )
    assert text == ours(request)


def test_tools_of_the_published_template_are_laid_out_as_well() -> None:
    messages = [{"role": "system", "content": "Hi", "tools": "[1]"}]
    text = jinja2.Environment().from_string(CHAT_TEMPLATE).render(messages=messages)
    assert text == "<|system|>Hi<|tool|>[1]<|/tool|><|end|>"


# ---- Ollama


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go, whose templates Ollama uses")
def test_ollama_would_lay_them_out_the_same(tmp_path: Path) -> None:
    """Up to blanks in JSON, and for a call's arguments as the object that Ollama passes."""
    renderer, template = tmp_path / "render", tmp_path / "template"
    template.write_text(GO_TEMPLATE)
    source = Path(__file__).parents[1] / "data" / "render_ollama.go"
    environment = {**os.environ, "GO111MODULE": "off"}
    subprocess.run(["go", "build", "-o", renderer, source], env=environment, check=True)
    for name, request in CONVERSATIONS.items():
        given = json.loads(json.dumps(request))
        first = given["messages"][0]
        given["system"] = first["content"] if first["role"] == "system" else ""
        for call in (c for m in given["messages"] for c in m.get("tool_calls") or ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        done = subprocess.run(
            [renderer, template],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=True,
        )
        assert parsed(done.stdout) == parsed(ours(request)), name


def parsed(prompt: str) -> list[object]:
    """A prompt's special tokens and words; JSON as the value it stands for."""
    pieces = re.split(r"(<\|[^|]+\|>)", prompt)
    return [json.loads(piece) if piece[:1] in ("[", "{") else piece for piece in pieces]


# ---- files and words


def test_a_modelfile_names_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", "ollama", sample_bundle(), "-o", tmp_path, "--adapter", "vision") == 0
    text = (tmp_path / "Modelfile").read_text()
    lines = text.splitlines()
    decoder, mmproj = (line.removeprefix("FROM ") for line in lines if line.startswith("FROM "))
    (adapter,) = [line.removeprefix("ADAPTER ") for line in lines if line.startswith("ADAPTER ")]
    assert Path(decoder).is_absolute()
    assert Path(decoder).samefile(sample_decoder())
    assert Path(mmproj).parent == tmp_path
    assert "vision-lora" in adapter
    assert Path(adapter).is_file()
    assert 'PARAMETER stop "<|end|>"' in lines
    with Bundle.open(sample_bundle()) as bundle:
        assert f"PARAMETER num_ctx {bundle.decoder.hparams.n_ctx_orig}" in lines
    assert {path.name for path in tmp_path.iterdir()} == {"Modelfile", Path(mmproj).name}
    said = capsys.readouterr().out
    assert f"ollama create phi4-mm -f {tmp_path}/Modelfile" in said
    assert "the vision adapter acts on every answer" in said


@pytest.mark.parametrize("target", ["ollama", "lmstudio", "llama.cpp"])
def test_what_cannot_be_done_is_said_with_what_can(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", target, sample_bundle()) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert any("text only" in n and f"phi4mm serve -m {sample_bundle()}" in n for n in notes)
    assert any("RoPE" in note for note in notes)
    assert any("adapter" in note for note in notes)


def test_lm_studio_is_given_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # again is no error
        assert run("export", "lmstudio", sample_bundle(), "-o", tmp_path) == 0
    (link,) = tmp_path.glob("*/*/*.gguf")
    assert link.relative_to(tmp_path).parts[:2] == ("phi4mm", sample_name())
    assert link.is_symlink()
    assert link.samefile(sample_decoder())
    assert f"linked {link} to " in capsys.readouterr().out


def test_a_file_in_the_way_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "phi4mm" / sample_name() / sample_decoder().name
    place.parent.mkdir(parents=True)
    place.write_text("mine")
    assert run("export", "lmstudio", sample_bundle(), "-o", tmp_path) == 2
    assert "in the way" in capsys.readouterr().err
    assert place.read_text() == "mine"


def test_the_script_is_what_it_says(tmp_path: Path, bundle: Path) -> None:
    """A program of the script's name, before the others, shows what it is given."""
    command = exported(tmp_path, bundle)
    shim = tmp_path / "bin" / "llama-server"
    shim.parent.mkdir()
    shim.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    shim.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "llama-server.sh", "--port", "9"],
        env={"PATH": f"{shim.parent}:/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [*command[1:], "--port", "9"]


def test_an_adapter_that_llama_cpp_cannot_name_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = shutil.copytree(sample_bundle(), tmp_path / "a,b")
    assert run("export", "llama.cpp", bundle) == 0
    said = capsys.readouterr().out
    assert "--lora-scaled " not in said.replace("--lora-scaled takes", "")
    assert "vision-lora-Q8_0.gguf is not loaded" in said


@pytest.mark.parametrize("target", ["ollama", "lmstudio", "llama.cpp"])
def test_commands_with_blanks_in_paths_can_be_typed(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = shutil.copytree(sample_bundle(), tmp_path / "my models")
    out = tmp_path / "an export"
    folder = [] if target == "lmstudio" else ["-o", out]
    assert run("export", target, bundle, *folder) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [w for line in lines if line.startswith(("l", "ollama")) for w in shlex.split(line)]
    place = {"ollama": out / "Modelfile"}.get(target, bundle / sample_decoder().name)
    assert str(place) in words
    assert any(f"phi4mm serve -m '{bundle}'," in line for line in lines)


def test_a_bundle_of_links_goes_by_the_names_of_the_links(tmp_path: Path) -> None:
    """The hub's cache has links to files that are named after their hashes."""
    blobs, bundle = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    bundle.mkdir()
    for number, file in enumerate(sorted(sample_bundle().glob("*.gguf"))):
        shutil.copy(file, blobs / f"{number:064x}")
        (bundle / file.name).symlink_to(blobs / f"{number:064x}")
    assert run("export", "lmstudio", bundle, "-o", tmp_path / "models") == 0
    (link,) = tmp_path.glob("models/*/*/*")
    assert link.name == sample_decoder().name
    assert link.read_bytes() == sample_decoder().read_bytes()


def test_an_adapter_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(sample_decoder(), tmp_path)
    assert run("export", "ollama", tmp_path, "--adapter", "speech") == 2
    assert "has no speech adapter" in capsys.readouterr().err


def test_the_template_of_calls_is_that_of_the_renderer() -> None:
    """A control: were one of them changed, the comparisons above would fail."""
    changed = CHAT_TEMPLATE.replace("<|tool_response|>", "<|tool|>")
    request = CONVERSATIONS["a call and its result"]
    environment = jinja2.Environment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    text = environment.from_string(changed).render(add_generation_prompt=True, **request)
    assert text != ours(request)
