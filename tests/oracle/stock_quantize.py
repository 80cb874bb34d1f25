"""Records what llama.cpp's own llama-quantize makes of the tiny model.

    cd tests && python -m oracle.stock_quantize LLAMA_QUANTIZE goldens/quantize_stock.json

Every decoder type is made with and without an importance matrix of fixed random numbers.  Of the
tiny model the type and the hash of every tensor are kept; of a model of 32 layers (the mixtures
look at the layer) the types alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from oracle.checkpoint import write_checkpoint

TYPES = (
    "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q4_0", "IQ4_XS",
    "Q3_K_M",
)  # fmt: skip
N_LAYER_MANY = 32
SEED = 7
MADE_BY = {
    "tool": "llama-quantize of llama.cpp 0c1e570, the source in llama-cpp-python 0.3.36",
    "build": "cmake -DGGML_NATIVE=OFF -DBUILD_SHARED_LIBS=OFF, gcc 12, x86-64",
    "command": "llama-quantize [--imatrix imatrix.gguf] SOURCE.gguf TARGET.gguf TYPE 1",
    "recorded": "python -m oracle.stock_quantize LLAMA_QUANTIZE goldens/quantize_stock.json",
}


def write_f16_bundle(folder: Path) -> Path:
    """The decoder file of the tiny model's bundle in F16."""
    from phi4mm.convert import convert_checkpoint

    checkpoint = write_checkpoint("tiny", folder / "tiny")
    convert_checkpoint(checkpoint, folder / "bundle")
    return folder / "bundle" / "tiny-F16.gguf"


def write_many_layers(path: Path) -> Path:
    """A decoder of as many layers as the real one has, all weights zero."""
    sys.path.append(str(Path(__file__).parents[1] / "unit"))
    from gguf_builder import DECODER, decoder_bytes

    from phi4mm.modelfile.ggml_type import GGMLType

    hparams = replace(DECODER, n_layer=N_LAYER_MANY, n_embd=256, n_ff=256, n_rot=48)
    path.write_bytes(decoder_bytes(h=hparams, matrix_type=GGMLType.F16))
    return path


def write_importance(decoder: Path, path: Path) -> Path:
    """An importance matrix of random numbers for every matrix of a decoder."""
    from phi4mm.modelfile.reader import GGUFFile
    from phi4mm.quantize.imatrix_file import ImportanceMatrix, Sums, write_imatrix

    rng = np.random.RandomState(SEED)
    sums = {}
    with GGUFFile.open(decoder) as file:
        for name, info in sorted(file.tensors.items()):
            if len(info.shape) == 2:
                squares = (rng.random_sample(info.shape[1]) ** 4 * 512).astype(np.float32)
                sums[name] = Sums(squares, 512)
    write_imatrix(ImportanceMatrix(sums, ("random numbers",), 1, 512), path)
    return path


def quantize(tool: Path, source: Path, target: Path, name: str, imatrix: Path | None) -> None:
    flags = ["--imatrix", str(imatrix)] if imatrix else []
    command = [str(tool), *flags, str(source), str(target), name, "1"]
    subprocess.run(command, check=True, capture_output=True)


def matrices_of(path: Path) -> dict[str, str]:
    """Type and hash of every matrix; what is F32 is copied."""
    from phi4mm.modelfile.reader import GGUFFile

    with GGUFFile.open(path) as file:
        return {
            name: f"{info.ggml_type.name} {hashlib.sha256(file.raw(name)).hexdigest()}"
            for name, info in sorted(file.tensors.items())
            if info.ggml_type.name != "F32"
        }


def types_of(path: Path) -> dict[str, str]:
    """The types of every kind of matrix, layer by layer."""
    types: dict[str, list[str]] = {}
    matrices = matrices_of(path)
    for name in sorted(
        matrices, key=lambda name: [int(n) for n in re.findall(r"^blk\.(\d+)", name)]
    ):
        kind = re.sub(r"^blk\.\d+\.", "", name)
        types.setdefault(kind, []).append(matrices[name].split()[0])
    return {kind: " ".join(found) for kind, found in types.items()}


def record(tool: Path, folder: Path, *, with_imatrix: bool) -> dict[str, object]:
    """What the tool makes of both models in every type."""
    tiny, many = write_f16_bundle(folder), write_many_layers(folder / "many.gguf")
    made = folder / "made.gguf"
    matrices, types = {}, {}
    for source in (tiny, many):
        imatrix = write_importance(source, folder / "imatrix.gguf") if with_imatrix else None
        for type_ in TYPES:
            quantize(tool, source, made, type_, imatrix)
            if source is tiny:
                matrices[type_] = matrices_of(made)
            else:
                types[type_] = types_of(made)
    return {"matrices": matrices, "types": types}


def main() -> None:
    tool, out = Path(sys.argv[1]), Path(sys.argv[2])
    golden: dict[str, object] = {"made_by": MADE_BY}
    for case in ("plain", "with_imatrix"):
        with tempfile.TemporaryDirectory() as folder:
            golden[case] = record(tool, Path(folder), with_imatrix=case == "with_imatrix")
    out.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
