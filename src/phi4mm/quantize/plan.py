"""What a quantisation will write, decided and checked before anything is written.

In: an opened bundle and what the user asked for.  Out: for each part a ``PlannedPart``: a file to
write, or one to copy as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phi4mm.convert.part_type import StoredAs, stored_as
from phi4mm.convert.plan import QUANTIZATION_VERSION
from phi4mm.convert.tensorfile import Rows
from phi4mm.convert.writer import OutputFile, OutputTensor
from phi4mm.errors import InputError
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.hparams import WritableMetadata
from phi4mm.modelfile.keys import Key
from phi4mm.native.library import Library
from phi4mm.quantize.imatrix_file import ImportanceMatrix, importance_of
from phi4mm.quantize.recipe import Override, Recipe, wanted_types
from phi4mm.quantize.source import Role, SourcePart, copied_metadata, parts_of
from phi4mm.quantize.tensor_encoder import TensorEncoder

SOURCE_TYPES: Final = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
# Types whose blocks do not depend on an importance matrix.
_INDIFFERENT: Final = (*SOURCE_TYPES, GGMLType.Q8_0)
# The flags of phi4mm convert and phi4mm quantize that choose a part's type.
_CONVERT_FLAGS: Final[dict[Role, str]] = {
    "decoder": "--type",
    "mmproj": "--mmproj-type",
    "adapter": "--lora-type",
}
# As llama-quantize names them.
IMATRIX_FILE: Final = Key("quantize.imatrix.file", "str", "importance matrix used")
IMATRIX_DATASET: Final = Key("quantize.imatrix.dataset", "str", "text it was collected from")
IMATRIX_ENTRIES: Final = Key("quantize.imatrix.entries_count", "u32", "matrices in it")
IMATRIX_CHUNKS: Final = Key("quantize.imatrix.chunks_count", "u32", "chunks of text it saw")


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for.

    Attributes:
        decoder: recipe of the decoder.
        mmproj: recipe of the encoders and projectors; None copies them.
        lora: recipe of the adapters; None copies them.
        overrides: types of single matrices, in every part that is not copied.
        imatrix: importance matrix of the decoder, and the file it was read from.
    """

    decoder: Recipe
    mmproj: Recipe | None = None
    lora: Recipe | None = None
    overrides: Sequence[Override] = ()
    imatrix: tuple[ImportanceMatrix, Path] | None = None

    def recipe(self, role: Role) -> Recipe | None:
        """The recipe of a part; None copies it."""
        return {"decoder": self.decoder, "mmproj": self.mmproj, "adapter": self.lora}[role]


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A part of the plan.

    Attributes:
        source: what it is made from.
        path: its file.
        output: what will be written; None if the source's file is copied.
        encoders: what encodes each matrix, and will know the loss.
        notes: what a person should know: padded rows, types that fell back.
    """

    source: SourcePart
    path: Path
    output: OutputFile | None
    encoders: Mapping[str, TensorEncoder]
    notes: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return self.output.n_bytes if self.output else self.source.file.path.stat().st_size


def plan_bundle(
    bundle: Bundle, request: Request, out_dir: Path, library: Library
) -> list[PlannedPart]:
    """Plan all parts of a bundle.

    Raises:
        InputError: the bundle lacks a part that a type was given for, a part is quantised already,
            or an override matches nothing.
        ModelFileError: the importance matrix is of another model.
    """
    parts = list(parts_of(bundle))
    _check_request(bundle, parts, request)
    planned = []
    for part in parts:
        recipe = request.recipe(part.role)
        if recipe is None:
            planned.append(PlannedPart(part, out_dir / part.file.path.name, None, {}, ()))
        else:
            planned.append(_quantised(part, recipe, request, out_dir, library))
    return planned


def _quantised(
    part: SourcePart, recipe: Recipe, request: Request, out_dir: Path, library: Library
) -> PlannedPart:
    path = part.path(out_dir, recipe)
    imatrix = request.imatrix if part.role == "decoder" else None
    stored = _stored(part, recipe, request.overrides, has_importance=imatrix is not None)
    if _is_done(part, recipe, stored):
        unused = f"the {part.title} is {recipe.name} already: the importance matrix is not used"
        return PlannedPart(part, path, None, {}, () if imatrix is None else (unused,))
    _refuse_quantised(part, stored)
    metadata: WritableMetadata = {
        keys.General.FILE_TYPE: recipe.file_type,
        keys.General.QUANTIZATION_VERSION: QUANTIZATION_VERSION,
    }
    importance: dict[str, Rows] = {}
    notes = _fit_notes(part, stored)
    if imatrix is not None:
        widths = {name: stored[name].shape[-1] for name in part.matrices}
        importance = importance_of(*imatrix, widths)
        metadata |= _imatrix_metadata(*imatrix)
        notes += _imatrix_notes(part, stored, importance)
    encoders = {name: TensorEncoder(library, importance.get(name)) for name in stored}
    output = [
        OutputTensor(name, s.shape, s.ggml_type, part.rows(name), encoders[name])
        for name, s in stored.items()
    ]
    file = OutputFile(path, copied_metadata(part.file.metadata, metadata), output)
    return PlannedPart(part, path, file, encoders, tuple(notes))


def _stored(
    part: SourcePart, recipe: Recipe, overrides: Sequence[Override], *, has_importance: bool
) -> dict[str, StoredAs]:
    """How each tensor will be stored, in file order."""
    types = wanted_types(recipe, part.matrices, has_importance=has_importance, overrides=overrides)
    return {
        name: stored_as(part.table[name], types.get(name, GGMLType.F32))
        for name in part.file.tensors
    }


def _is_done(part: SourcePart, recipe: Recipe, stored: Mapping[str, StoredAs]) -> bool:
    """Whether the source's file is already what is asked for."""
    return part.file.metadata.get(keys.General.FILE_TYPE) == recipe.file_type and all(
        (info.ggml_type, info.shape) == (stored[name].ggml_type, stored[name].shape)
        for name, info in part.file.tensors.items()
    )


def _refuse_quantised(part: SourcePart, stored: Mapping[str, StoredAs]) -> None:
    """Quantising twice adds the errors up; llama-quantize refuses it as well."""
    for name, info in part.file.tensors.items():
        if info.ggml_type not in SOURCE_TYPES:
            flag = _CONVERT_FLAGS[part.role]
            leave = "" if part.role == "decoder" else f", or leave {flag} out to copy the file"
            raise InputError(
                f"{part.file.path}: {name} is {info.ggml_type.name} already, and making it "
                f"{stored[name].ggml_type.name} would add to its error: convert the checkpoint "
                f"again with {flag} f16{leave}"
            )


def _check_request(bundle: Bundle, parts: Sequence[SourcePart], request: Request) -> None:
    """Refuse what would have no effect."""
    roles = {part.role for part in parts}
    if request.mmproj is not None and "mmproj" not in roles:
        raise InputError(f"{bundle.decoder.path}: has no mmproj beside it: leave --mmproj-type out")
    if request.lora is not None and "adapter" not in roles:
        raise InputError(f"{bundle.decoder.path}: has no adapter beside it: leave --lora-type out")
    names = [name for part in parts if request.recipe(part.role) for name in part.matrices]
    for override in request.overrides:
        if not any(override.pattern.search(name) for name in names):
            raise InputError(
                f"--tensor-type {override.pattern.pattern!r}: found in none of the {len(names)} "
                f"matrices that are quantised; they are named like {names[-1]}"
            )


def _fit_notes(part: SourcePart, stored: Mapping[str, StoredAs]) -> list[str]:
    counts = Counter(s.note for s in stored.values() if s.note)
    return [
        f"{part.title}: {n} {'matrix' if n == 1 else 'matrices'} with {note}"
        for note, n in counts.items()
    ]


def heeds_importance(bundle: Bundle, recipe: Recipe) -> bool:
    """Whether an importance matrix changes what a recipe makes of a decoder."""
    decoder = next(parts_of(bundle))
    types = wanted_types(recipe, decoder.matrices, has_importance=True)
    return not all(ggml_type in _INDIFFERENT for ggml_type in types.values())


def _imatrix_metadata(imatrix: ImportanceMatrix, path: Path) -> WritableMetadata:
    return {
        IMATRIX_FILE: path.name,
        IMATRIX_DATASET: imatrix.datasets[0] if imatrix.datasets else "",
        IMATRIX_ENTRIES: len(imatrix.sums),
        IMATRIX_CHUNKS: imatrix.n_chunks,
    }


def _imatrix_notes(
    part: SourcePart, stored: Mapping[str, StoredAs], importance: Mapping[str, Rows]
) -> list[str]:
    """Say where an importance matrix has no say."""
    notes = []
    if without := [name for name in part.matrices if name not in importance]:
        notes.append(f"the importance matrix has nothing on {', '.join(without)}")
    if all(stored[name].ggml_type in _INDIFFERENT for name in importance):
        notes.append("the importance matrix changes nothing: it has no effect on these types")
    return notes
