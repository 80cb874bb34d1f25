"""Recipes as data: which type each matrix of a part is given, and why.

A recipe is named as llama.cpp names its file types, and for a decoder it gives every tensor the
type that ``llama-quantize`` gives it.  Source: ``llama_tensor_get_type_impl`` in llama-quant.cpp
of llama.cpp 0c1e570, the branches for architecture phi3: a fused ``attn_qkv`` counts as the value
matrix there, and a token embedding that is also the output matrix as the output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from phi4mm.errors import InputError
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.tensors import OUTPUT, TOKEN_EMBD

Kind = Literal["output", "attn_v", "attn_output", "ffn_down", "other"]
Layers = Callable[[int, int], bool]
"""Whether layer ``il`` of ``n_layer`` is meant."""


def every(il: int, n_layer: int) -> bool:
    """All layers."""
    return True


def first_two(il: int, n_layer: int) -> bool:
    """The first two layers."""
    return il < 2


def first_four(il: int, n_layer: int) -> bool:
    """The first four layers."""
    return il < 4


def first_eighth(il: int, n_layer: int) -> bool:
    """The first eighth of the layers."""
    return il < n_layer // 8


def first_sixteenth(il: int, n_layer: int) -> bool:
    """The first sixteenth of the layers."""
    return il < n_layer // 16


def more_bits(il: int, n_layer: int) -> bool:
    """The first and last eighth, and every third layer between."""
    eighth = n_layer // 8
    return il < eighth or il >= 7 * n_layer // 8 or (il - eighth) % 3 == 2


@dataclass(frozen=True, slots=True)
class Rule:
    """An exception from a recipe's base type.

    Attributes:
        kind: the matrices it is about.
        layers: in which layers.
        ggml_type: what they are given.
        why: the reason, for people.
        importance: True or False if the rule holds only with or only without an importance matrix.
    """

    kind: Kind
    layers: Layers
    ggml_type: GGMLType
    why: str
    importance: bool | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """A type as users name it.

    Attributes:
        name: its name, also in the names of files.
        file_type: llama.cpp's number for it, ``general.file_type``.
        base: the type of matrices that no rule is about.
        rules: exceptions; the first that fits counts.
    """

    name: str
    file_type: int
    base: GGMLType
    rules: tuple[Rule, ...] = ()

    def type_of(
        self, kind: Kind, il: int | None, n_layer: int, *, has_importance: bool
    ) -> GGMLType:
        """The type of a matrix.

        Args:
            kind: what it is.
            il: its layer; None outside of the layers.
            n_layer: layers of its network.
            has_importance: whether an importance matrix is used.
        """
        for rule in self.rules:
            if (
                rule.kind == kind
                and rule.importance in (None, has_importance)
                and rule.layers(il or 0, n_layer)
            ):
                return rule.ggml_type
        return self.base


_T = GGMLType
_OUTPUT: Final = Rule("output", every, _T.Q6_K, "every logit and every embedding comes from it")
_VALUES: Final = "an error in the values reaches every later position"
_DOWN: Final = "its inputs have the largest outliers"
_DOWN_EARLY: Final = "the first layers' outliers are the largest"
_MIXTURE: Final = (
    Rule("attn_v", more_bits, _T.Q6_K, _VALUES),
    Rule("ffn_down", more_bits, _T.Q6_K, _DOWN),
)

_ALL: Final = (
    Recipe("F16", 1, _T.F16),
    Recipe("BF16", 32, _T.BF16),
    Recipe("Q8_0", 7, _T.Q8_0),
    Recipe("Q6_K", 18, _T.Q6_K),
    Recipe("Q5_K_M", 17, _T.Q5_K, (_OUTPUT, *_MIXTURE)),
    Recipe("Q5_K_S", 16, _T.Q5_K, (_OUTPUT,)),
    Recipe("Q4_K_M", 15, _T.Q4_K, (_OUTPUT, *_MIXTURE)),
    Recipe(
        "Q4_K_S",
        14,
        _T.Q4_K,
        (
            _OUTPUT,
            Rule("attn_v", first_four, _T.Q5_K, _VALUES),
            Rule("ffn_down", first_eighth, _T.Q5_K, _DOWN_EARLY),
        ),
    ),
    Recipe(
        "Q4_0",
        2,
        _T.Q4_0,
        (_OUTPUT, Rule("ffn_down", first_eighth, _T.Q4_1, _DOWN_EARLY, importance=True)),
    ),
    Recipe(
        "IQ4_XS",
        30,
        _T.IQ4_XS,
        (_OUTPUT, Rule("ffn_down", first_eighth, _T.Q5_K, _DOWN_EARLY, importance=False)),
    ),
    Recipe(
        "Q3_K_M",
        12,
        _T.Q3_K,
        (
            _OUTPUT,
            Rule("attn_v", first_two, _T.Q5_K, _VALUES),
            Rule("attn_v", every, _T.Q4_K, _VALUES),
            Rule("attn_output", every, _T.Q4_K, "small, and its error adds to every later layer"),
            Rule("ffn_down", first_sixteenth, _T.Q5_K, _DOWN_EARLY),
            Rule("ffn_down", every, _T.Q4_K, _DOWN),
        ),
    ),
)
RECIPES: Final[dict[str, Recipe]] = {recipe.name: recipe for recipe in _ALL}

# What --tensor-type may name: types that need no importance matrix and that every backend has.
TENSOR_TYPES: Final = (
    _T.F32, _T.F16, _T.BF16, _T.Q8_0, _T.Q6_K, _T.Q5_K, _T.Q5_1, _T.Q5_0, _T.Q4_K, _T.Q4_1,
    _T.Q4_0, _T.IQ4_NL, _T.IQ4_XS, _T.Q3_K, _T.Q2_K,
)  # fmt: skip

_KINDS: Final[tuple[tuple[str, Kind], ...]] = (
    (r"\.attn_(qkv|v)\.weight", "attn_v"),
    (r"\.attn_out(put)?\.weight", "attn_output"),
    (r"\.ffn_down(_1)?\.weight", "ffn_down"),
)
_LAYER: Final = re.compile(r"^((?:[va]\.)?blk)\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Override:
    """A type that the user gives to some tensors.

    Attributes:
        pattern: found anywhere in their names.
        ggml_type: the type.
    """

    pattern: re.Pattern[str]
    ggml_type: GGMLType

    @classmethod
    def parse(cls, text: str) -> Override:
        """Read ``PATTERN=TYPE``.

        Raises:
            InputError: it is not of this form, or the pattern or the type cannot be.
        """
        pattern, separator, name = text.rpartition("=")
        if not separator or not pattern:
            raise InputError(f"--tensor-type {text!r}: must be PATTERN=TYPE")
        types = {ggml_type.name: ggml_type for ggml_type in TENSOR_TYPES}
        if name.upper() not in types:
            raise InputError(f"--tensor-type {text!r}: {name!r} is none of {', '.join(types)}")
        try:
            return cls(re.compile(pattern), types[name.upper()])
        except re.error as error:
            raise InputError(f"--tensor-type {text!r}: no regular expression: {error}") from None


def find_recipe(name: str) -> Recipe:
    """A recipe by its name, in any case.

    Raises:
        InputError: there is none; the message lists all.
    """
    if name.upper() not in RECIPES:
        raise InputError(f"type {name!r} is not known, must be one of {', '.join(RECIPES)}")
    return RECIPES[name.upper()]


def wanted_types(
    recipe: Recipe,
    names: Iterable[str],
    *,
    has_importance: bool = False,
    overrides: Iterable[Override] = (),
) -> dict[str, GGMLType]:
    """The type of each matrix of a part, before it is known whether its rows fit.

    Args:
        recipe: what the user asked for.
        names: the part's matrices.
        has_importance: whether an importance matrix is used.
        overrides: the user's exceptions; the first whose pattern is found counts.
    """
    names, overrides = list(names), list(overrides)
    output = OUTPUT if OUTPUT in names else TOKEN_EMBD
    layers = [match.groups() for match in map(_LAYER.match, names) if match]
    types = {}
    for name in names:
        network, il = _layer(name)
        n_layer = 1 + max((int(i) for other, i in layers if other == network), default=0)
        kind: Kind = "output" if name == output else _kind(name)
        given = (o.ggml_type for o in overrides if o.pattern.search(name))
        chosen = recipe.type_of(kind, il, n_layer, has_importance=has_importance)
        types[name] = next(given, chosen)
    return types


def _layer(name: str) -> tuple[str, int | None]:
    """Which network's layer a tensor is in: of the decoder, the vision or the audio encoder."""
    match = _LAYER.match(name)
    return (match[1], int(match[2])) if match else ("", None)


def _kind(name: str) -> Kind:
    return next((kind for pattern, kind in _KINDS if re.search(pattern, name)), "other")
