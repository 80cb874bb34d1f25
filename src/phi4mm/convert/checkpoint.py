"""A checkpoint folder in either published layout, opened lazily and checked at once.

In: a folder.  Out: ``Checkpoint``: its config, its layout, and every tensor by name, still on disk.
Everything that can be wrong with the files themselves is found here, before any work: a missing
shard, a Git LFS pointer, a truncated file, an index that does not agree with the shards.

The two layouts are Microsoft's (``phi4mm``: adapters inside the shards) and transformers'
(``phi4_multimodal``: adapters in folders of their own).  docs/model.md, "Tensors".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from phi4mm.convert.tensorfile import (
    SourceTensor,
    open_tensors,
    parse_json_object,
    refuse_lfs_pointer,
)
from phi4mm.errors import ModelFileError
from phi4mm.modality import Adapter

Described: TypeAlias = Mapping[str, Mapping[str, SourceTensor]]

ADAPTERS: tuple[Adapter, ...] = ("vision", "speech")
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG_FILE = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """One way of naming the tensors of this model.

    Attributes:
        title: whose layout it is, for messages.
        model_type: ``model_type`` in its config.json.
        renames: ``(pattern, replacement)`` pairs that turn Microsoft's names into this layout's,
            applied in order.
    """

    title: str
    model_type: str
    renames: tuple[tuple[str, str], ...] = ()

    def rename(self, name: str) -> str:
        """This layout's name of a tensor that Microsoft's layout calls ``name``."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name


MICROSOFT = Layout("Microsoft's layout", "phi4mm")
# Source: transformers' convert_phi4_multimodal_weights_to_hf.py; docs/model.md, "Tensors".
TRANSFORMERS = Layout(
    "transformers' layout",
    "phi4_multimodal",
    (
        (r"\.base_layer\.weight$", ".weight"),
        (r"^(.*\.lora_[AB])\.(vision|speech)\.weight$", r"\2-lora/\1.weight"),
        (r"(\.feed_forward_(?:in|out))\.net\.0\.linear\.", r"\1.gate_up_proj."),
        (r"(\.feed_forward_(?:in|out))\.net\.2\.", r"\1.down_proj."),
        (r"(\.encoders\.\d+\.self_attn)\.linear_([qkv])\.", r"\1.\2_proj."),
        (r"(\.encoders\.\d+\.self_attn)\.linear_out\.", r"\1.o_proj."),
        (r"\.img_projection\.0\.", ".img_projection_up."),
        (r"\.img_projection\.2\.", ".img_projection_down."),
        (r"\.glb_GN$", ".global_img_feature_extensor"),
        (r"\.sub_GN$", ".sub_img_feature_extensor"),
        (r"\.audio_projection\.speech\.0\.", ".up_proj_for_speech."),
        (r"\.audio_projection\.speech\.2\.", ".down_proj_for_speech."),
        (r"\.audio_projection\.vision\.0\.", ".up_proj_for_vision_speech."),
        (r"\.audio_projection\.vision\.2\.", ".down_proj_for_vision_speech."),
    ),
)
LAYOUTS = {layout.model_type: layout for layout in (MICROSOFT, TRANSFORMERS)}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        path: its folder.
        layout: how its tensors are named.
        config: its config.json.
        tensors: every tensor by its stored name; one of an adapter folder by
            ``vision-lora/NAME`` with the prefix that PEFT adds removed.
        adapter_folders: adapter folders whose tensors are among ``tensors``.
        ignored_folders: adapter folders left unread because the shards hold the same adapter.
    """

    path: Path
    layout: Layout
    config: dict[str, object]
    tensors: dict[str, SourceTensor]
    adapter_folders: tuple[Path, ...]
    ignored_folders: tuple[Path, ...]


def open_checkpoint(path: Path, described: Described | None = None) -> Checkpoint:
    """Open a checkpoint folder.

    Args:
        path: the folder.
        described: weight files that need not be here: their tensors, by the files' names within
            the folder.

    Raises:
        ModelFileError: it is not a checkpoint of this model, or a file of it is missing,
            truncated, a Git LFS pointer, or contradicts another.
    """
    if not path.is_dir():
        found = "a file" if path.exists() else "no such folder"
        raise ModelFileError(f"{path}: {found}; a checkpoint is a folder with config.json")
    config = read_json(path / "config.json")
    layout = _layout(path / "config.json", config)
    described = described or {}
    tensors = _main_tensors(path, described)
    folders = [path / f"{name}-lora" for name in ADAPTERS]
    present = [folder for folder in folders if folder.is_dir()]
    inside = {name for name in ADAPTERS if any(f".lora_A.{name}." in stored for stored in tensors)}
    read = [folder for folder in present if folder.name.removesuffix("-lora") not in inside]
    for folder in read:
        for name, tensor in open_adapter_tensors(folder, described).items():
            tensors[f"{folder.name}/{name}"] = tensor
    ignored = [folder for folder in present if folder not in read]
    return Checkpoint(path, layout, config, tensors, tuple(read), tuple(ignored))


def open_adapter_tensors(
    folder: Path, described: Described | None = None
) -> dict[str, SourceTensor]:
    """The tensors of a PEFT adapter folder, by module path: ``model.layers.0.X.lora_A.weight``.

    PEFT's own prefix ``base_model.model.`` and the adapter's name inside a key are removed.

    Raises:
        ModelFileError: the file is missing or malformed, or two of its names mean the same.
    """
    tensors: dict[str, SourceTensor] = {}
    given = (described or {}).get(f"{folder.name}/{ADAPTER_WEIGHTS_FILE}")
    stored_tensors = given or open_tensors(_existing(folder / ADAPTER_WEIGHTS_FILE))
    for stored, tensor in stored_tensors.items():
        name = re.sub(r"\.(lora_[AB])\.\w+\.weight$", r".\1.weight", stored)
        name = name.removeprefix("base_model.model.")
        if name in tensors:
            raise ModelFileError(
                f"{folder / ADAPTER_WEIGHTS_FILE}: {stored!r} and {tensors[name].name!r} "
                "are the same weight of two adapters; one adapter per folder is supported"
            )
        tensors[name] = tensor
    return tensors


def read_json(path: Path) -> dict[str, object]:
    """A JSON file that must exist and hold an object.

    Raises:
        ModelFileError: it is missing, a Git LFS pointer, or not a JSON object.
    """
    refuse_lfs_pointer(_existing(path))
    return parse_json_object(path, path.read_bytes())


def read_optional_json(path: Path) -> dict[str, object]:
    """A JSON file that may be missing: then an empty object."""
    return read_json(path) if path.exists() else {}


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ModelFileError(f"{path.parent}: {path.name} is missing")
    return path


def _layout(path: Path, config: dict[str, object]) -> Layout:
    model_type = config.get("model_type")
    layout = LAYOUTS.get(model_type) if isinstance(model_type, str) else None
    if layout is None:
        known = " and ".join(f"{key!r} ({value.title})" for key, value in LAYOUTS.items())
        raise ModelFileError(f"{path}: model_type is {model_type!r}; {known} are supported")
    return layout


def _main_tensors(path: Path, described: Described) -> dict[str, SourceTensor]:
    if WEIGHTS_FILE in described:
        return dict(described[WEIGHTS_FILE])
    single, index = path / WEIGHTS_FILE, path / INDEX_FILE
    if single.exists() and index.exists():
        raise ModelFileError(
            f"{path}: both {WEIGHTS_FILE} and {INDEX_FILE} are here: remove the stale one"
        )
    if single.exists():
        return open_tensors(single)
    if index.exists():
        return _sharded_tensors(path, weight_map(index), described)
    raise ModelFileError(f"{path}: neither {WEIGHTS_FILE} nor {INDEX_FILE} is here")


def weight_map(index: Path) -> dict[str, str]:
    """Which shard each tensor is in, from the index file.

    Raises:
        ModelFileError: the file does not tell.
    """
    shard_of = read_json(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise ModelFileError(f"{index}: weight_map is missing or empty")
    for name, file in shard_of.items():
        if not isinstance(file, str) or not re.fullmatch(r"[\w.-]+\.safetensors", file):
            raise ModelFileError(f"{index}: weight_map places {name!r} in {file!r}, no file name")
    return cast(dict[str, str], shard_of)


def _sharded_tensors(
    path: Path, shard_of: dict[str, str], described: Described
) -> dict[str, SourceTensor]:
    shards = sorted(set(shard_of.values()))
    missing = [s for s in shards if s not in described and not (path / s).is_file()]
    if missing:
        raise ModelFileError(
            f"{path}: {len(shards) - len(missing)} of {len(shards)} shards are here: "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        )
    tensors: dict[str, SourceTensor] = {}
    for shard in shards:
        for name, tensor in (described.get(shard) or open_tensors(path / shard)).items():
            if shard_of.get(name) != shard:
                placed = f"places it in {shard_of[name]}" if name in shard_of else "omits it"
                raise ModelFileError(f"{path / shard}: holds {name!r}, but {INDEX_FILE} {placed}")
            tensors[name] = tensor
    for name, shard in shard_of.items():
        if name not in tensors:
            raise ModelFileError(f"{path / INDEX_FILE}: {name!r} is not in {shard}")
    return tensors
