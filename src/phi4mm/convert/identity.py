"""The bundle id: which checkpoint a file was made from.

It depends on the checkpoint alone, not on the types asked for, so parts that were converted apart
still match.  It samples every tensor instead of reading it, so it costs no pass over the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from phi4mm.convert.checkpoint import Checkpoint
from phi4mm.convert.tensorfile import SourceTensor
from phi4mm.modality import Adapter

_N_BYTES = 16  # 32 hexadecimal digits
_SAMPLE_BYTES = 256
_N_SAMPLES = 6  # first, last, and four between


def bundle_id(checkpoint: Checkpoint) -> str:
    """Identity of a checkpoint: its config, and every tensor's name, type, shape and samples."""
    traits = {name: trait(name, tensor) for name, tensor in checkpoint.tensors.items()}
    return identity_of(checkpoint.config, traits)


def trait(name: str, tensor: SourceTensor) -> bytes:
    """What a tensor adds to the identity of its checkpoint."""
    last = max(0, len(tensor.data) - _SAMPLE_BYTES)
    starts = [last * k // (_N_SAMPLES - 1) for k in range(_N_SAMPLES)]
    samples = b"".join(tensor.data[start : start + _SAMPLE_BYTES] for start in starts)
    return f"\0{name}\0{tensor.dtype}\0{tensor.shape}\0".encode() + samples


def identity_of(config: Mapping[str, object], traits: Mapping[str, bytes]) -> str:
    """The identity, from the traits of all tensors by name."""
    digest = hashlib.blake2b(digest_size=_N_BYTES)
    digest.update(json.dumps(config, sort_keys=True).encode())
    for name in sorted(traits):
        digest.update(traits[name])
    return digest.hexdigest()


def merged_id(original: str, adapter: Adapter) -> str:
    """Identity of a bundle that has one of its adapters merged: another one than the original's."""
    text = f"{original} merged with {adapter}"
    return hashlib.blake2b(text.encode(), digest_size=_N_BYTES).hexdigest()
