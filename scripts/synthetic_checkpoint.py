"""Writes a synthetic checkpoint of the real size: random weights, real names, shapes and config.

    python scripts/synthetic_checkpoint.py DIR [--layers N] [--tokenizer tokenizer.json]

2047 tensors, 5.57 billion weights, bfloat16, three shards, Microsoft's layout, 200 064 tokens:
11 GB, written as a stream.  It shows what conversion and running take at the real size where the
real weights are not at hand; what it answers means nothing.  ``--layers`` keeps only the first N
layers of the decoder and of each encoder.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import shutil
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import BinaryIO

import numpy as np
from o200k_tokenizer import tokenizer_json

from phi4mm.convert.config import SIGLIP_SO400M

Shape = tuple[int, ...]

DATA = Path(__file__).parents[1] / "tests" / "data"
TENSORS = DATA / "real_tensors.tsv.gz"
CONFIG = DATA / "real_config.json"
N_SHARDS = 3
N_BPE_TOKENS = 199_998
N_DRAWN = 1 << 22  # weights drawn at random; longer tensors repeat them
MAX_SAVE_BYTES = 5_000_000_000  # most of one shard, as the original has it

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>'"
    " }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def real_tensors() -> dict[str, Shape]:
    """Name and shape of every tensor of the original checkpoint."""
    lines = gzip.decompress(TENSORS.read_bytes()).decode().splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return {name: tuple(json.loads(shape)) for name, shape, _ in rows}


def keep_layers(tensors: dict[str, Shape], n_layer: int) -> dict[str, Shape]:
    """The tensors with every stack of layers cut to its first ``n_layer``."""
    index = re.compile(r"\.(?:layers|encoders)\.(\d+)\.")
    found = {name: index.search(name) for name in tensors}
    return {
        name: shape
        for name, shape in tensors.items()
        if (match := found[name]) is None or int(match[1]) < n_layer
    }


def moments(name: str, shape: Shape) -> tuple[float, float]:
    """Mean and deviation that keep activations near 1 through all layers."""
    if name.endswith("global_mean"):
        return 8.0, 2.0
    if name.endswith("global_invstd"):
        return 0.35, 0.05
    if "norm" in name and name.endswith("weight"):
        return 1.0, 0.02
    if name.endswith("bias"):
        return 0.0, 0.02
    if name == "model.embed_tokens.weight":
        return 0.0, 0.02
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
    return 0.0, 1.0 / math.sqrt(max(fan_in, 16))


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Upper halves of float32 numbers: truncation is random enough for random weights."""
    return (values.view(np.uint32) >> 16).astype("<u2")


def write_tensor(stream: BinaryIO, name: str, shape: Shape, drawn: np.ndarray) -> None:
    """Write one tensor: a stretch of the drawn numbers, scaled, and repeated if it is longer."""
    n = math.prod(shape)
    mean, std = moments(name, shape)
    start = sum(map(ord, name)) % 4096  # so that tensors of one shape are not equal
    block = to_bfloat16(drawn[start : start + min(n, N_DRAWN - 4096)] * np.float32(std) + mean)
    for left in range(n, 0, -len(block)):
        stream.write(block[:left].data)


def shards(tensors: dict[str, Shape]) -> list[dict[str, Shape]]:
    """The tensors dealt to the shards in order, as full as the original's."""
    total = 2 * sum(map(math.prod, tensors.values()))
    limit = min(MAX_SAVE_BYTES, total / (N_SHARDS - 0.5))
    dealt: list[dict[str, Shape]] = [{}]
    filled = 0.0
    for name, shape in tensors.items():
        size = 2 * math.prod(shape)
        if filled + size > limit and dealt[-1] and len(dealt) < N_SHARDS:
            dealt.append({})
            filled = 0.0
        dealt[-1][name] = shape
        filled += size
    return dealt


def header(tensors: dict[str, Shape]) -> bytes:
    """A safetensors header for tensors that follow each other."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in tensors.items():
        end = offset + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_weights(folder: Path, tensors: dict[str, Shape]) -> None:
    drawn = np.random.default_rng(1).standard_normal(N_DRAWN, np.float32)
    dealt = shards(tensors)
    weight_map = {}
    for k, shard in enumerate(dealt):
        name = f"model-{k + 1:05d}-of-{len(dealt):05d}.safetensors"
        with (folder / name).open("wb") as stream:
            stream.write(header(shard))
            for tensor, shape in shard.items():
                write_tensor(stream, tensor, shape, drawn)
        weight_map |= dict.fromkeys(shard, name)
    total = 2 * sum(map(math.prod, tensors.values()))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def write_configs(folder: Path, n_layer: int | None) -> None:
    """The original's configuration files, as far as they are known."""
    config = json.loads(CONFIG.read_text())
    if n_layer is not None:
        config["num_hidden_layers"] = min(n_layer, config["num_hidden_layers"])
        audio = config["audio_processor"]["config"]
        audio["num_blocks"] = min(n_layer, audio["num_blocks"])
        config["tiny_vision_tower"] = SIGLIP_SO400M | {"num_hidden_layers": min(n_layer, 27)}
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": [200020, 199999]},
        "preprocessor_config.json": {"dynamic_hd": 36},
        "tokenizer_config.json": {"chat_template": TEMPLATE},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))


def write_tokenizer(folder: Path, source: Path | None) -> None:
    if source is not None:
        shutil.copy(source, folder / "tokenizer.json")
        return
    text = json.dumps(tokenizer_json(synthetic_ranks()), ensure_ascii=False)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")


def synthetic_ranks() -> dict[bytes, int]:
    """A byte-level vocabulary of the real size: bytes, pairs of bytes, triples of bytes."""
    every = [bytes([byte]) for byte in range(256)]

    def tokens() -> Iterator[bytes]:
        for length in (1, 2, 3):
            yield from map(b"".join, product(every, repeat=length))

    return {token: rank for rank, token in enumerate(islice(tokens(), N_BPE_TOKENS))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--layers", metavar="N", type=int, help="layers to keep of each stack")
    parser.add_argument("--tokenizer", metavar="FILE", type=Path, help="tokenizer.json to copy")
    args = parser.parse_args()
    if args.layers is not None and args.layers < 2:
        parser.error("--layers must be 2 or more")
    tensors = real_tensors()
    if args.layers is not None:
        tensors = keep_layers(tensors, args.layers)
    args.folder.mkdir(parents=True)
    write_configs(args.folder, args.layers)
    write_tokenizer(args.folder, args.tokenizer)
    write_weights(args.folder, tensors)


if __name__ == "__main__":
    main()
