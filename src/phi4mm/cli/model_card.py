"""Writes a model card: every number comes from the files or from a record of a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from phi4mm.cli.table import byte_size
from phi4mm.errors import InputError
from phi4mm.inspection import Inspection
from phi4mm.markdown import markdown_table
from phi4mm.measurement.machine import Machine
from phi4mm.measurement.record import Kind, Record, read_record
from phi4mm.modality import MODES
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle import Bundle

Lines = Iterator[str]
Row = Sequence[str]

_COMMANDS: Final[Mapping[Kind, str]] = {
    "perplexity": "phi4mm perplexity BUNDLE -f TEXT -o FILE",
    "kl_divergence": "phi4mm perplexity BUNDLE --kl-divergence --base FILE -o FILE",
    "eval": "phi4mm eval TASK MANIFEST -m BUNDLE -o FILE",
    "bench": "phi4mm bench -m BUNDLE -o FILE",
    "plan": "phi4mm plan BUNDLE -c N -o FILE",
    "verify": "phi4mm verify CHECKPOINT BUNDLE -o FILE",
}


def read_records(paths: Iterable[Path]) -> list[Record]:
    """Records of files, and of all ``*.json`` files of folders.

    Raises:
        InputError: one cannot be read.
    """
    found: list[Path] = []
    for path in paths:
        found += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [read_record(path) for path in found]


def write_card(bundle: Bundle, inspection: Inspection, records: Sequence[Record]) -> str:
    """The card as Markdown; what was not measured is said to be missing.

    Args:
        bundle: the files, opened.
        inspection: the same, described.
        records: measurements of this very bundle.

    Raises:
        InputError: a record is of other files.
    """
    _refuse_others(inspection, records)
    by_kind: dict[Kind, list[Record]] = {kind: [] for kind in _COMMANDS}
    for record in records:
        by_kind[record.kind].append(record)
    lines = [f"# {bundle.decoder.file.metadata.get(keys.General.NAME, bundle.decoder.path.stem)}"]
    lines += _files(inspection)
    lines += _usage(bundle)
    for kind, title, section in _SECTIONS:
        if by_kind[kind]:
            lines += ["", f"## {title}", "", *section(by_kind[kind])]
    missing = [kind for kind, found in by_kind.items() if not found]
    if missing:
        lines += ["", "## Not measured", ""]
        lines += [f"- {kind.replace('_', ' ')}: `{_COMMANDS[kind]}`" for kind in missing]
    return "\n".join(lines)


def _refuse_others(inspection: Inspection, records: Sequence[Record]) -> None:
    own = {file.fingerprint for file in inspection.files}
    for record in records:
        strangers = [file.name for file in record.files if file.fingerprint not in own]
        if strangers:
            raise InputError(
                f"the {record.kind} of {record.machine.made} is of other files than "
                f"{inspection.path}: {', '.join(strangers)}"
            )


def _files(inspection: Inspection) -> Lines:
    yield ""
    yield "## Files"
    yield ""
    rows = [
        (
            f"`{file.path.name}`",
            file.title,
            ", ".join(file.types or ()),
            byte_size(file.n_bytes),
            "" if file.bits_per_weight is None else f"{file.bits_per_weight:.2f}",
            f"`{file.fingerprint}`",
        )
        for file in inspection.files
    ]
    yield from markdown_table(("file", "part", "types", "size", "bits/weight", "fingerprint"), rows)
    ids = dict.fromkeys(file.bundle_id for file in inspection.files)
    yield ""
    yield f"{byte_size(sum(file.n_bytes for file in inspection.files))} in all, bundle id " + (
        ", ".join(f"`{id_}`" if id_ else "none" for id_ in ids) + "."
    )


def _usage(bundle: Bundle) -> Lines:
    yield from ("", "## Use", "", "```", "pip install phi4mm")
    media = {(False, False): "", (True, False): " --image FILE", (False, True): " --audio FILE"}
    for has, flags in media.items():
        if bundle.supports(MODES[has]):
            yield f'phi4mm run -m FOLDER{flags} -p "..."'
    yield "```"


def _perplexity(records: Sequence[Record]) -> Lines:
    rows = [
        (r.result["text"], _estimate(r.result["perplexity"], 4), *_scope(r.result)) for r in records
    ]
    yield from markdown_table(("text", "perplexity", "tokens scored", "chunk"), rows)


def _divergence(records: Sequence[Record]) -> Lines:
    rows = [
        (
            r.result["text"],
            _estimate(r.result["kl"], 6),
            f"{r.result['kl_median']:.6f}",
            f"{r.result['kl_99']:.6f}",
            f"{r.result['kl_max']:.6f}",
            f"{r.result['same_top']['value']:.2%}",
            *_scope(r.result),
        )
        for r in records
    ]
    header = ("base", "mean", "median", "99 %", "maximum", "same top token", "tokens", "chunk")
    yield from markdown_table(header, rows)


def _evaluation(records: Sequence[Record]) -> Lines:
    rows: list[Row] = []
    for r in records:
        if r.result["task"] == "sample":
            rows += _abilities(r.result)
            continue
        if r.result["task"] == "wer":
            scores = {f"WER {name}": f"{rate:.2%}" for name, rate in r.result["wer"].items()}
        else:
            scores = {
                name: f"{s['value']:.2%} ± {s['error']:.2%}"
                for name, s in r.result["scores"].items()
            }
        counts = (str(r.result["n_items"]), str(len(r.result["failed"])))
        rows += [(r.result["items"], name, score, *counts) for name, score in scores.items()]
    yield from markdown_table(("set", "score", "value", "items", "failed"), rows)


def _abilities(result: Mapping[str, Any]) -> Iterator[Row]:
    for ability in result["abilities"]:
        metric = "WER" if ability["kind"] == "clips" else "right"
        counts = (str(ability["n_items"]), str(len(ability["failed"])))
        for use, score in (("", ability["score"]), (" without adapter", ability["score_off"])):
            if score is not None:
                value = f"{score['value']:.2%} ({score['low']:.1%} to {score['high']:.1%})"
                yield (result["items"], f"{ability['title']}, {metric}{use}", value, *counts)


def _speed(records: Sequence[Record]) -> Lines:
    for index, record in enumerate(records):
        if index:
            yield ""
        yield _machine(record.machine)
        yield ""
        rows = [
            (
                m["name"],
                f"{m['value']:.4g}",
                m["unit"],
                "" if m["fraction"] is None else f"{m['fraction']:.0%}",
            )
            for m in record.result["measures"]
        ]
        yield from markdown_table(("", "median", "unit", "of the machine's limit"), rows)
        footprint = record.result["footprint"]
        peak = footprint["anonymous_bytes"]
        yield ""
        yield (
            f"Load {footprint['load_s']:.2f} s; {byte_size(footprint['mapped_bytes'])} of mapped "
            f"weights" + ("." if peak is None else f", and {byte_size(peak)} of memory at peak.")
        )


def _memory(records: Sequence[Record]) -> Lines:
    rows = []
    for r in sorted(records, key=lambda r: r.result["n_ctx"]):
        places = {"mapped": 0, "memory": 0}
        for item in r.result["items"]:
            places[item["place"]] += item["n_bytes"]
        types = f"{r.result['type_k']}/{r.result['type_v']}"
        sizes = (*places.values(), sum(places.values()))
        rows.append((str(r.result["n_ctx"]), types, *map(byte_size, sizes)))
    yield from markdown_table(("context", "cache", "mapped", "memory", "in all"), rows)


def _parity(records: Sequence[Record]) -> Lines:
    rows = [
        (a["name"], f"{a['max_error']:.2e}", f"{a['cosine']:.7f}",
         f"{a['n_agreed']}/{a['n_greedy']}")
        for r in records
        for a in r.result["answers"]
    ]  # fmt: skip
    for r in records:
        weights = r.result["weights"]
        n_left = sum(weights["n_dropped"].values())
        worst = max(part["relative"] for part in weights["parts"])
        yield (
            f"{weights['n_used']} tensors of the checkpoint used, {n_left} left out; relative "
            f"error of the weights at most {worst:.2e} in any part."
        )
        yield from (f"Not compared: {reason}" for reason in r.result["missing"])
        yield ""
    if rows:
        yield from markdown_table(("prompt", "largest error", "cosine", "greedy tokens"), rows)


_SECTIONS: Final[Sequence[tuple[Kind, str, Callable[[Sequence[Record]], Lines]]]] = (
    ("perplexity", "Perplexity", _perplexity),
    ("kl_divergence", "Divergence from the base, nats per token", _divergence),
    ("eval", "Evaluation", _evaluation),
    ("bench", "Speed", _speed),
    ("plan", "Memory", _memory),
    ("verify", "Parity with the checkpoint", _parity),
)


def _machine(machine: Machine) -> str:
    memory = "" if machine.memory_bytes is None else f", {byte_size(machine.memory_bytes)}"
    return (
        f"On {machine.cpu}, {machine.n_threads} threads{memory}, with {machine.library}, "
        f"phi4mm {machine.version}, {machine.made[:10]}."
    )


def _scope(result: Mapping[str, Any]) -> tuple[str, str]:
    return str(result["n_scored"]), str(result["n_ctx"])


def _estimate(estimate: Mapping[str, float], digits: int) -> str:
    return f"{estimate['value']:.{digits}f} ± {estimate['error']:.{digits}f}"
