"""A Modelfile for Ollama.

Source: Ollama's documentation of the Modelfile and of its templates, which are Go's.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from phi4mm.export.export_set import ExportSet
from phi4mm.export.stock import MODEL_NAME, STOPS, StockModel
from phi4mm.modality import Adapter

# Lines begin with a mark that swallows the line break before it.
GO_TEMPLATE: Final = """\
{{- if and .Tools (not .System) }}<|system|><|tool|>[{{ range $i, $tool := .Tools }}\
{{ if $i }}, {{ end }}{{ $tool.Function }}{{ end }}]<|/tool|><|end|>{{ end }}
{{- range .Messages }}
{{- if eq .Role "system" }}<|system|>{{ .Content }}\
{{ if $.Tools }}<|tool|>[{{ range $i, $tool := $.Tools }}\
{{ if $i }}, {{ end }}{{ $tool.Function }}{{ end }}]<|/tool|>{{ end }}<|end|>
{{- else if eq .Role "user" }}<|user|>{{ .Content }}<|end|>
{{- else if eq .Role "tool" }}<|tool_response|>{{ .Content }}<|end|>
{{- else if eq .Role "assistant" }}<|assistant|>{{ .Content }}\
{{ if .ToolCalls }}<|tool_call|>[{{ range $i, $call := .ToolCalls }}{{ if $i }}, {{ end }}\
{"name": "{{ $call.Function.Name }}", "arguments": {{ $call.Function.Arguments }}}{{ end }}]\
<|/tool_call|>{{ end }}<|end|>
{{- end }}
{{- end }}<|assistant|>"""


def ollama_export(
    model: StockModel, folder: Path | None, adapter: Adapter | None, with_pictures: bool
) -> ExportSet:
    """A Modelfile and the commands that use it; the encoder for pictures with the vision adapter.

    Args:
        model: the parts.
        folder: where the Modelfile will be; None if it is only shown.
        adapter: the adapter that every answer is given with; None for the base model.
        with_pictures: whether the encoder for pictures is written, if the vision adapter acts.
    """
    acts = "vision" in (adapter, model.merged)
    can_see = with_pictures and acts and model.vision is not None
    sees = can_see and folder is not None
    place = (folder or Path()).absolute()
    modelfile = place / "Modelfile"
    mmproj = place / model.mmproj_name if sees else None
    own = (
        f"ollama create reads {model.decoder.name} into Ollama's own store; nothing is copied here",
    )
    return ExportSet(
        texts={"Modelfile": _modelfile(model, adapter, mmproj)},
        weights=model.mmproj(model.mmproj_name) if sees else {},
        commands=(
            f"ollama create {MODEL_NAME} -f {shlex.quote(str(modelfile))}",
            f"ollama run {MODEL_NAME}",
        ),
        notes=(
            *model.notes("Ollama", "PARAMETER num_ctx", can_see=can_see, sees=sees),
            *own,
            *_adapter_notes(model, adapter),
        ),
    )


def _modelfile(model: StockModel, adapter: Adapter | None, mmproj: Path | None) -> str:
    lines = [f"FROM {model.decoder}"]
    if mmproj is not None:
        lines.append(f"FROM {mmproj}")
    if adapter is not None:
        lines.append(f"ADAPTER {model.adapters[adapter]}")
    lines.append(f'TEMPLATE """{GO_TEMPLATE}"""')
    lines += [f'PARAMETER stop "{stop}"' for stop in STOPS]
    lines += [
        f"PARAMETER num_ctx {model.n_ctx}",
        "PARAMETER temperature 0",
        "PARAMETER repeat_penalty 1",
    ]
    return "\n".join(lines) + "\n"


def _adapter_notes(model: StockModel, adapter: Adapter | None) -> tuple[str, ...]:
    if adapter is not None:
        return (f"the {adapter} adapter acts on every answer, also on plain text",)
    if not model.adapters:
        return ()
    names = " or ".join(f"--adapter {name}" for name in model.adapters)
    return (f"no adapter acts: Ollama takes one for all answers or none ({names})",)
