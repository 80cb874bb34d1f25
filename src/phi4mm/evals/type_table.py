"""All types of one bundle beside each other: sizes, and how far each is from the source.

The source's log-probabilities of some material are computed once; then, for one type after another,
the decoder is quantised and compared with them.  Every row is on disk when it is measured, so that
a run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from phi4mm.convert.output_folder import check_space, readable_os_errors
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError
from phi4mm.evals.material import Material
from phi4mm.evals.perplexity import Divergence
from phi4mm.measurement.fingerprint import identify
from phi4mm.measurement.record import new_record
from phi4mm.measurement.staged_file import staged_file
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.library import load
from phi4mm.progress import Stage
from phi4mm.quantize.imatrix_file import ImportanceMatrix
from phi4mm.quantize.plan import Request, heeds_importance, plan_bundle
from phi4mm.quantize.quantize import quantize_parts
from phi4mm.quantize.recipe import RECIPES, Recipe
from phi4mm.quantize.report import PartReport, bits_per_weight

BASE_LOGITS: Final = "base.logits"
_BASE: Final = "base"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One type, measured.

    Attributes:
        name: the type's.
        has_imatrix: whether an importance matrix was used.
        n_bytes: size of the decoder's file.
        bits_per_weight: of the decoder.
        perplexity: of the material, and its standard error.
        perplexity_error: of the former.
        kl: mean divergence from the source, nats per token; None for the source itself, as are
            the next three.
        kl_error: standard error of the former.
        kl_99: what 99 % of the tokens stay below.
        same_top: share of tokens where both find the same token most likely.
        errors: relative error of each group of matrices; empty for the source.
    """

    name: str
    has_imatrix: bool
    n_bytes: int
    bits_per_weight: float
    perplexity: float
    perplexity_error: float
    kl: float | None
    kl_error: float | None
    kl_99: float | None
    same_top: float | None
    errors: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TypeTableRequest:
    """What to compare, and on what.

    Attributes:
        material: what is computed.
        recipes: the types.
        imatrix: an importance matrix and its file; types that it changes are measured without
            and with it.
        keep: whether the bundles stay, each with its divergence as a record.
    """

    material: Material
    recipes: tuple[Recipe, ...]
    imatrix: tuple[ImportanceMatrix, Path] | None = None
    keep: bool = False


def default_recipes(bundle: Bundle) -> tuple[Recipe, ...]:
    """All types but the source's own."""
    own = bundle.decoder.file.metadata.get(keys.General.FILE_TYPE)
    return tuple(recipe for recipe in RECIPES.values() if recipe.file_type != own)


def compare_types(
    bundle: Bundle, out_dir: Path, request: TypeTableRequest, params: EngineParams, stage: Stage
) -> list[TypeRow]:
    """Measure the source and every type; rows that are in the folder already are read.

    Args:
        bundle: the source, with weights in F16, BF16 or F32.
        out_dir: folder for the rows, the source's log-probabilities, and bundles; made if missing.
        request: what to compare.
        params: how to compute.
        stage: told what is being done.

    Returns:
        The source's row, then the others in the order of ``request``.

    Raises:
        InputError: the folder's rows were measured in another way, there is no room, or the source
            is quantised already.
        ModelFileError: the importance matrix is of another model.
    """
    with readable_os_errors():
        return list(_Table(bundle, out_dir, request, params, stage).rows())


class _Table:
    """One run, and what all its rows depend on."""

    def __init__(
        self,
        bundle: Bundle,
        out_dir: Path,
        request: TypeTableRequest,
        params: EngineParams,
        stage: Stage,
    ) -> None:
        self._bundle, self._out_dir, self._request = bundle, out_dir, request
        self._params, self._stage = params, stage
        self._alone = replace(bundle, mmproj=None, adapters={})
        self._setup: dict[str, Any] = {
            "source": identify(bundle.decoder.file).fingerprint,
            **request.material.identity(),
            "cache": [params.type_k, params.type_v],
        }

    def rows(self) -> Iterator[TypeRow]:
        variants = list(self._variants())
        for recipe, imatrix in variants:  # what cannot be made is refused before hours of work
            plan_bundle(self._alone, Request(recipe, imatrix=imatrix), self._out_dir, load())
        kept = [self._kept(_name(*variant), variant[1]) for variant in variants]
        self._out_dir.mkdir(parents=True, exist_ok=True)
        yield self._base(needs_logits=None in kept)
        for row, (recipe, imatrix) in zip(kept, variants, strict=True):
            yield self._measure(recipe, imatrix) if row is None else row

    def _variants(self) -> Iterator[tuple[Recipe, tuple[ImportanceMatrix, Path] | None]]:
        for recipe in self._request.recipes:
            yield recipe, None
            if self._request.imatrix is not None and heeds_importance(self._alone, recipe):
                yield recipe, self._request.imatrix

    def _base(self, *, needs_logits: bool) -> TypeRow:
        """The source's row, and its log-probabilities if a type needs them."""
        logits, kept = self._out_dir / BASE_LOGITS, self._kept(_BASE, None)
        if kept is not None and (logits.exists() or not needs_logits):
            return kept
        material, decoder = self._request.material, self._bundle.decoder
        check_space(self._out_dir, material.base_bytes())
        with self._stage("scoring the source", material.unit) as progress:
            found = material.perplexity(decoder, logits, progress)
        row = TypeRow(
            name=_own_name(decoder.file.metadata.get(keys.General.FILE_TYPE)),
            has_imatrix=False,
            n_bytes=decoder.path.stat().st_size,
            bits_per_weight=bits_per_weight(decoder.file.tensors.values()),
            perplexity=found.perplexity.value,
            perplexity_error=found.perplexity.error,
            kl=None,
            kl_error=None,
            kl_99=None,
            same_top=None,
            errors={},
        )
        self._keep(_BASE, None, row)
        return row

    def _measure(self, recipe: Recipe, imatrix: tuple[ImportanceMatrix, Path] | None) -> TypeRow:
        name = _name(recipe, imatrix)
        request = Request(recipe, imatrix=imatrix)
        source = self._bundle if self._request.keep else self._alone
        with self._folder(name) as folder:
            with self._stage(f"{name}: quantising", None) as progress:
                report = quantize_parts(source, folder, request, self._params.threads, progress)
            unit = self._request.material.unit
            with Bundle.open(folder) as made, self._stage(f"{name}: scoring", unit) as progress:
                logits = self._out_dir / BASE_LOGITS
                found = self._request.material.divergence(made.decoder, logits, progress)
                if self._request.keep:
                    self._write_record(made, folder, found)
        row = _row(recipe, imatrix is not None, report.parts[0], found)
        self._keep(name, imatrix, row)
        return row

    @contextmanager
    def _folder(self, name: str) -> Iterator[Path]:
        """Where a bundle is made; it is removed unless it is to be kept."""
        if self._request.keep:
            yield self._out_dir / name
            return
        folder = self._out_dir / f".{name}.partial"
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _write_record(self, made: Bundle, folder: Path, found: Divergence) -> None:
        values = {"text": self._request.material.name, **asdict(found)}
        path = folder / "measurements" / "kl_divergence.json"
        path.parent.mkdir(exist_ok=True)
        new_record("kl_divergence", made, values, self._params.threads).write(path)

    def _setup_of(self, imatrix: tuple[ImportanceMatrix, Path] | None) -> dict[str, Any]:
        return self._setup | {"imatrix": None if imatrix is None else _digest(imatrix[0])}

    def _keep(self, name: str, imatrix: tuple[ImportanceMatrix, Path] | None, row: TypeRow) -> None:
        values = {"phi4mm_type": _FORMAT, "setup": self._setup_of(imatrix), "row": asdict(row)}
        with staged_file(self._out_dir / f"{name}.json") as stream:
            stream.write(f"{json.dumps(values)}\n".encode())

    def _kept(self, name: str, imatrix: tuple[ImportanceMatrix, Path] | None) -> TypeRow | None:
        """A row that was measured before; None if there is none.

        Raises:
            InputError: it was measured with something else.
        """
        path = self._out_dir / f"{name}.json"
        if not path.exists():
            return None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            setup, row = values["setup"], TypeRow(**values["row"])
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{path}: no row of a table of types: choose another folder") from None
        for key, value in self._setup_of(imatrix).items():
            if setup.get(key) != value:
                raise InputError(f"{path}: measured with another {key}: choose another folder")
        return row


def _name(recipe: Recipe, imatrix: object) -> str:
    return recipe.name if imatrix is None else f"{recipe.name}-imatrix"


def _own_name(file_type: object) -> str:
    found = (recipe.name for recipe in RECIPES.values() if recipe.file_type == file_type)
    return next(found, "source")


def _digest(imatrix: ImportanceMatrix) -> str:
    digest = sha256()
    for name, sums in sorted(imatrix.sums.items()):
        digest.update(f"{name}\0{sums.count}\0".encode())
        digest.update(sums.squares.tobytes())
    return digest.hexdigest()


def _row(recipe: Recipe, has_imatrix: bool, part: PartReport, found: Divergence) -> TypeRow:
    return TypeRow(
        name=recipe.name,
        has_imatrix=has_imatrix,
        n_bytes=part.n_bytes,
        bits_per_weight=part.bits_per_weight,
        perplexity=found.perplexity.value,
        perplexity_error=found.perplexity.error,
        kl=found.kl.value,
        kl_error=found.kl.error,
        kl_99=found.kl_99,
        same_top=found.same_top.value,
        errors={group.name: group.loss.relative for group in part.groups if group.loss},
    )
