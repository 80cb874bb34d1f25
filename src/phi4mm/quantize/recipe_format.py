"""A recipe as the format of a part that is converted from a checkpoint, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

from phi4mm.convert.encode import Encode
from phi4mm.convert.part_type import StoredAs, stored_as
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.tensors import TensorTable
from phi4mm.native.library import Library
from phi4mm.quantize.recipe import Recipe, wanted_types
from phi4mm.quantize.tensor_encoder import encode_as


@dataclass(frozen=True, slots=True)
class RecipeFormat:
    """The types of a recipe; a ``PartFormat``.

    Attributes:
        recipe: what the user asked for.
        library: the native library, whose kernels quantise.
    """

    recipe: Recipe
    library: Library

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    @property
    def file_type(self) -> int:
        """llama.cpp's number for such a file."""
        return self.recipe.file_type

    def stored(self, table: TensorTable) -> dict[str, StoredAs]:
        """How each tensor of a part is stored."""
        matrices = [name for name, spec in table.items() if spec.kind == "matrix"]
        types = wanted_types(self.recipe, matrices)
        return {
            name: stored_as(spec, types.get(name, GGMLType.F32)) for name, spec in table.items()
        }

    def encode(self) -> Encode:
        """In ggml."""
        return lambda rows, ggml_type: encode_as(self.library, rows, ggml_type)
