"""`phi4mm quantize`: llama-quantize's types and bytes, whole bundles, and refusals."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf_builder import DECODER, foreign_decoder_bytes, with_fields
from numpy.typing import NDArray
from quantized import decoder_of, run, weights

from oracle import stock_quantize
from phi4mm.convert import convert_checkpoint
from phi4mm.errors import ModelFileError
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensors import decoder_tensors
from phi4mm.native.batch import Batch
from phi4mm.native.llama import Adapter, Context, Model
from phi4mm.native.params import ContextParams
from phi4mm.quantize.plan import Request
from phi4mm.quantize.quantize import quantize_bundle
from phi4mm.quantize.recipe import RECIPES, wanted_types

if TYPE_CHECKING:
    from parity.fixtures import BundleDir, CheckpointDir

GOLDEN = json.loads((Path(__file__).parents[1] / "goldens" / "quantize_stock.json").read_text())
# Other processors' compilers fuse multiplications and additions, in llama-quantize as well.
same_arithmetic = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="hashes were made on x86-64"
)
TYPES = tuple(RECIPES)
Made = Callable[[str, bool], Path]


@pytest.fixture(scope="module")
def f16(bundle_dir: BundleDir) -> Path:
    """The tiny bundle as converted by default: the decoder is F16, the rest Q8_0."""
    return bundle_dir("tiny", types="default")


@pytest.fixture(scope="module")
def imatrix(f16: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The importance matrix of random numbers that llama-quantize was given."""
    folder = tmp_path_factory.mktemp("imatrix")
    return stock_quantize.write_importance(decoder_of(f16).path, folder / "imatrix.gguf")


@pytest.fixture(scope="module")
def made(f16: Path, imatrix: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Gives the tiny bundle in a type, with or without the importance matrix."""

    @cache
    def make(type_: str, with_imatrix: bool) -> Path:
        folder = tmp_path_factory.mktemp("made") / type_
        flags = ["--imatrix", imatrix] if with_imatrix else []
        assert run("quantize", f16, type_, "-o", folder, *flags) == 0
        return folder

    return make


def refusal(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line that a refused command prints."""
    assert run(*args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


# ---- the same types and bytes as llama-quantize


@pytest.mark.parametrize("case", ["plain", "with_imatrix"])
@pytest.mark.parametrize("type_", TYPES)
def test_types_of_32_layers_are_those_of_llama_quantize(type_: str, case: str) -> None:
    names = decoder_tensors(with_fields(DECODER, n_layer=stock_quantize.N_LAYER_MANY))
    matrices = [name for name, spec in names.items() if spec.kind == "matrix"]
    found: dict[str, list[str]] = {}
    types = wanted_types(RECIPES[type_], matrices, has_importance=case == "with_imatrix")
    for name, ggml_type in types.items():
        found.setdefault(re.sub(r"^blk\.\d+\.", "", name), []).append(ggml_type.name)
    assert {kind: " ".join(each) for kind, each in found.items()} == GOLDEN[case]["types"][type_]


@same_arithmetic
@pytest.mark.parametrize("case", ["plain", "with_imatrix"])
@pytest.mark.parametrize("type_", TYPES)
def test_bytes_are_those_of_llama_quantize(made: Made, type_: str, case: str) -> None:
    file = decoder_of(made(type_, case == "with_imatrix"))
    assert stock_quantize.matrices_of(file.path) == GOLDEN[case]["matrices"][type_]
    assert file.metadata[keys.General.FILE_TYPE] == RECIPES[type_].file_type


def test_hashes_tell_the_importance_matrix() -> None:
    """The control: what the importance matrix changes shows in every hash."""
    plain, weighted = (GOLDEN[case]["matrices"]["Q4_K_M"] for case in ("plain", "with_imatrix"))
    assert plain.keys() == weighted.keys()
    assert not set(plain.values()) & set(weighted.values())


def test_the_tied_embedding_is_never_below_q6_k() -> None:
    for recipe in RECIPES.values():
        chosen = wanted_types(recipe, ["token_embd.weight"])["token_embd.weight"]
        bits = 8 * chosen.block_bytes / chosen.block_size
        assert bits >= 8 * GGMLType.Q6_K.block_bytes / GGMLType.Q6_K.block_size


def test_an_output_matrix_of_its_own_takes_the_embeddings_place() -> None:
    types = wanted_types(RECIPES["Q4_K_M"], ["token_embd.weight", "output.weight"])
    assert types == {"token_embd.weight": GGMLType.Q4_K, "output.weight": GGMLType.Q6_K}


def test_the_help_lists_every_type(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        run("quantize", "--help")
    assert f"types: {' '.join(TYPES)}\n" in capsys.readouterr().out


# ---- what the files compute


def logits_of(folder: Path) -> NDArray[np.float32]:
    ids = np.arange(24, dtype=np.int32) * 11 % 400
    params = ContextParams(
        256, 1, 1, n_batch=24, n_ubatch=24, n_outputs_max=24, type_k="f32", type_v="f32"
    )
    with Model(decoder_of(folder).path) as model, Context(model, params) as context:
        context.decode(Batch.of_sequence(ids, logits="all"))
        return context.logits(range(24))


def test_every_type_computes_and_errors_grow_as_bits_shrink(made: Made, f16: Path) -> None:
    reference = logits_of(f16)
    errors = {}
    for type_ in TYPES:
        logits = logits_of(made(type_, False))
        assert np.isfinite(logits).all(), type_
        errors[type_] = float(np.linalg.norm(logits - reference) / np.linalg.norm(reference))
    assert errors["F16"] < 1e-6
    assert errors["Q8_0"] < 0.05
    for more, fewer in (
        ("Q8_0", "Q6_K"),
        ("Q6_K", "Q5_K_S"),
        ("Q5_K_S", "Q4_K_S"),
        ("Q4_K_S", "Q3_K_M"),
    ):
        assert errors[more] < errors[fewer], (more, fewer, errors)
    assert errors["Q4_K_M"] < errors["Q4_0"] < 0.5


@pytest.mark.parametrize("type_", ["BF16", "Q8_0", "Q4_K_M", "Q4_0", "IQ4_XS", "Q3_K_M"])
def test_reported_errors_are_those_of_the_written_weights(
    made: Made, f16: Path, tmp_path: Path, type_: str
) -> None:
    report = quantize_bundle(f16, tmp_path / "out", Request(RECIPES[type_]))
    source, written = decoder_of(f16), decoder_of(made(type_, False))
    for group in report.parts[0].groups:
        names = [name for name in source.tensors if name.endswith(f"{group.name}.weight")]
        given = np.concatenate([weights(source, name).ravel() for name in names])
        stored = np.concatenate([weights(written, name).ravel() for name in names])
        expected = np.sqrt(np.mean((stored - given) ** 2) / np.mean(given**2))
        assert group.loss is not None
        assert group.loss.relative == pytest.approx(expected, rel=1e-3)
        assert 0 < group.loss.relative < 0.2
        assert sum(group.types.values()) == len(names)
        assert group.n_weights == given.size


# ---- whole bundles


def test_a_bundle_keeps_its_id_metadata_and_other_parts(made: Made, f16: Path) -> None:
    with Bundle.open(f16) as before, Bundle.open(made("Q4_K_M", False)) as after:
        assert before.bundle_id == after.bundle_id
        assert before.mmproj
        assert after.mmproj
        assert before.mmproj.path.read_bytes() == after.mmproj.path.read_bytes()
        for name, adapter in before.adapters.items():
            assert adapter.path.read_bytes() == after.adapters[name].path.read_bytes()
        for name, info in before.decoder.file.tensors.items():
            if info.ggml_type is GGMLType.F32:
                copied = after.decoder.file.raw(name)
                np.testing.assert_array_equal(copied, before.decoder.file.raw(name))
        old, new = before.decoder.file.metadata, after.decoder.file.metadata
        assert list(old) == list(new)
        changed = [key for key in old if np.any(old[key] != new[key])]
        assert changed == [keys.General.FILE_TYPE]
        assert after.decoder.path.name == "tiny-ms0-Q4_K_M.gguf"


def test_an_importance_matrix_is_named_in_the_file(made: Made) -> None:
    metadata = decoder_of(made("Q4_0", True)).metadata
    assert metadata["quantize.imatrix.dataset"] == "random numbers"
    assert metadata["quantize.imatrix.entries_count"] == 9


def test_threads_and_repetition_change_nothing(f16: Path, tmp_path: Path) -> None:
    for n in (1, 3):
        assert run("quantize", f16, "Q3_K_M", "-o", tmp_path / str(n), "-t", n) == 0
    first, second = (decoder_of(tmp_path / n).path.read_bytes() for n in ("1", "3"))
    assert first == second


def test_the_summary_says_what_was_done(f16: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("quantize", f16, "q4_k_m", "-o", tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert re.search(r"^tiny-ms0-Q4_K_M\.gguf +decoder .* \d\.\d\d$", out, re.MULTILINE)
    assert re.search(r"^ +attn_qkv +1 Q4_K, 1 Q6_K .* \d\.\d\d%$", out, re.MULTILINE)
    assert re.search(r"^mmproj-tiny-ms0-Q8_0\.gguf +mmproj, copied ", out, re.MULTILINE)
    assert "bundle id " in out
    assert "weighted error" not in out


def test_what_is_done_already_is_copied(made: Made, tmp_path: Path) -> None:
    source = made("Q4_K_M", False)
    assert run("quantize", source, "Q4_K_M", "-o", tmp_path / "out", "--lora-type", "q8_0") == 0
    assert decoder_of(tmp_path / "out").path.read_bytes() == decoder_of(source).path.read_bytes()


def test_what_is_done_already_takes_no_importance_matrix(
    f16: Path, imatrix: Path, tmp_path: Path, capsys: Any
) -> None:
    assert run("quantize", f16, "F16", "-o", tmp_path / "out", "--imatrix", imatrix) == 0
    assert "is F16 already: the importance matrix is not used" in capsys.readouterr().out


def test_a_merged_bundle_is_quantised_too(checkpoint_dir: CheckpointDir, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    convert_checkpoint(checkpoint_dir("tiny"), merged, merge="vision")
    assert run("quantize", merged, "Q4_K_M", "-o", tmp_path / "out") == 0
    with Bundle.open(merged) as before, Bundle.open(tmp_path / "out") as after:
        assert after.bundle_id == before.bundle_id
        assert after.decoder.hparams.merged_adapter == "vision"
    assert np.isfinite(logits_of(tmp_path / "out")).all()


def test_adapters_of_a_quantised_decoder_load_without_a_warning(
    bundle_dir: BundleDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run("quantize", bundle_dir("heads"), "Q4_0", "-o", tmp_path, "--lora-type", "Q8_0") == 0
    with Bundle.open(tmp_path) as bundle, Model(bundle.decoder.path) as model:
        for adapter in bundle.adapters.values():
            Adapter(model, adapter.path)
    assert [line.message for line in caplog.records if line.levelname != "DEBUG"] == []


# ---- rows that do not fit


def test_encoder_rows_are_padded_with_zeros(
    bundle_dir: BundleDir, tmp_path: Path, capsys: Any
) -> None:
    source, out = bundle_dir("heads"), tmp_path / "out"
    assert run("quantize", source, "F16", "-o", out, "--mmproj-type", "Q6_K") == 0
    assert "rows of 216 padded with zeros to 256 for Q6_K" in capsys.readouterr().out
    with Bundle.open(source) as before, Bundle.open(out) as after:
        assert before.mmproj
        assert after.mmproj
        for name, info in after.mmproj.file.tensors.items():
            if info.ggml_type is not GGMLType.F32:
                given, stored = (weights(m.file, name) for m in (before.mmproj, after.mmproj))
                n = given.shape[-1]
                assert not stored[..., n:].any()
                assert np.linalg.norm(stored[..., :n] - given) < 0.03 * np.linalg.norm(given)


def test_padded_encoders_compute_nearly_the_same(
    bundle_dir: BundleDir, media_dir: Path, tmp_path: Path
) -> None:
    from phi4mm import Phi4MM

    source, out = bundle_dir("heads"), tmp_path / "out"
    assert run("quantize", source, "F16", "-o", out, "--mmproj-type", "Q6_K") == 0
    picture = next(media_dir.glob("*448x448*"))
    features = []
    for folder in (source, out):
        with Phi4MM(folder, n_ctx=512, n_threads=1) as model:
            features.append(np.asarray(model.encode_image(picture)).ravel())
    given, found = features
    assert found @ given / np.linalg.norm(found) / np.linalg.norm(given) > 0.99


def test_adapter_rows_take_the_nearest_type_that_fits(
    bundle_dir: BundleDir, tmp_path: Path, capsys: Any
) -> None:
    assert (
        run("quantize", bundle_dir("heads"), "F16", "-o", tmp_path / "h", "--lora-type", "Q4_K_S")
        == 0
    )
    out = capsys.readouterr().out
    assert "speech adapter: 9 matrices with rows of 64 stored as Q5_0, not Q4_K" in out
    assert (
        run("quantize", bundle_dir("tiny"), "F16", "-o", tmp_path / "t", "--lora-type", "Q4_0") == 0
    )
    out = capsys.readouterr().out
    assert "speech adapter: 8 matrices with rows of 10 stored as F16, not Q4_0" in out
    assert Bundle.open(tmp_path / "t").adapters.keys() == {"vision", "speech"}


def test_decoder_rows_take_the_nearest_type_that_fits(tmp_path: Path, capsys: Any) -> None:
    h = with_fields(DECODER, n_embd=32, n_ff=48)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.gguf").write_bytes(
        foreign_decoder_bytes(
            {keys.General.NAME: "a b", "other.key": 5}, h=h, types={"other.key": "u64"}
        )
    )
    assert run("quantize", tmp_path / "in", "Q4_K_S", "-o", tmp_path / "out") == 0
    capsys.readouterr()
    file = decoder_of(tmp_path / "out")
    assert file.path.name == "a-b-Q4_K_S.gguf"
    assert file.metadata["other.key"] == 5
    types = {name: info.ggml_type.name for name, info in file.tensors.items()}
    assert types["token_embd.weight"] == "Q8_0"  # for Q6_K
    assert types["blk.0.ffn_up.weight"] == "Q5_0"  # for Q4_K
    assert types["blk.0.ffn_down.weight"] == "F16"  # 48 is no multiple of 32


# ---- overrides


def test_overrides_change_what_they_match_and_nothing_else(
    made: Made, f16: Path, tmp_path: Path
) -> None:
    flags = ["--tensor-type", r"blk\.1\.ffn_up=q8_0", "--tensor-type", "ffn_=Q3_K"]
    assert run("quantize", f16, "Q4_K_M", "-o", tmp_path / "out", *flags) == 0
    plain, other = decoder_of(made("Q4_K_M", False)), decoder_of(tmp_path / "out")
    for name, info in plain.tensors.items():
        if "ffn_" not in name or "norm" in name:
            assert plain.raw(name).tobytes() == other.raw(name).tobytes()
            assert info.ggml_type == other.tensors[name].ggml_type
    types = {name: info.ggml_type.name for name, info in other.tensors.items()}
    assert types["blk.1.ffn_up.weight"] == "Q8_0"
    assert types["blk.0.ffn_up.weight"] == types["blk.1.ffn_down.weight"] == "Q3_K"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("nothing=Q8_0", "found in none of the 9 matrices"),
        ("attn_norm=Q8_0", "found in none of the 9 matrices"),
        ("^v.blk=Q8_0", "found in none of the 9 matrices"),
        ("ffn_down", "must be PATTERN=TYPE"),
        ("=Q8_0", "must be PATTERN=TYPE"),
        ("ffn_down=Q9", "'Q9' is none of F32, F16,"),
        ("ffn_(=Q8_0", "no regular expression"),
    ],
)
def test_overrides_that_cannot_be_are_refused(
    f16: Path, tmp_path: Path, capsys: Any, override: str, message: str
) -> None:
    args = ("quantize", f16, "Q4_K_M", "-o", tmp_path / "out", "--tensor-type", override)
    assert message in refusal(capsys, *args)
    assert not (tmp_path / "out").exists()


# ---- refusals


def test_an_unknown_type_lists_the_known_ones(f16: Path, tmp_path: Path, capsys: Any) -> None:
    for flags in (
        ["Q4_K_X"],
        ["Q8_0", "--mmproj-type", "Q4_K_X"],
        ["Q8_0", "--lora-type", "Q4_K_X"],
    ):
        error = refusal(capsys, "quantize", f16, *flags, "-o", tmp_path / "out")
        assert "'Q4_K_X'" in error
        assert ", ".join(TYPES) in error


def test_quantising_twice_is_refused_with_a_way_out(
    made: Made, f16: Path, tmp_path: Path, capsys: Any
) -> None:
    source, out = made("Q8_0", False), tmp_path / "out"
    for type_ in ("Q4_K_M", "F16"):
        error = refusal(capsys, "quantize", source, type_, "-o", out)
        assert "is Q8_0 already" in error
        assert "convert the checkpoint again with --type f16" in error
    error = refusal(capsys, "quantize", f16, "Q4_K_M", "-o", out, "--mmproj-type", "Q6_K")
    assert (
        "convert the checkpoint again with --mmproj-type f16, or leave --mmproj-type out" in error
    )
    assert not out.exists()


def test_types_for_parts_that_are_not_there_are_refused(
    f16: Path, tmp_path: Path, capsys: Any
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(decoder_of(f16).path, alone)
    for flag, what in (("--mmproj-type", "mmproj"), ("--lora-type", "adapter")):
        error = refusal(capsys, "quantize", alone, "Q8_0", "-o", tmp_path / "out", flag, "F16")
        assert f"has no {what}" in error


def test_other_files_are_left_alone(f16: Path, made: Made, tmp_path: Path, capsys: Any) -> None:
    before = {path: path.read_bytes() for path in f16.iterdir()}
    assert "is in the way" in refusal(capsys, "quantize", f16, "Q8_0", "-o", f16)
    assert {path: path.read_bytes() for path in f16.iterdir()} == before
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tiny-ms0-Q8_0.gguf").write_bytes(b"something else")
    error = refusal(capsys, "quantize", f16, "Q8_0", "-o", tmp_path / "out")
    assert "of another model" in error


def test_an_existing_result_may_be_made_again(f16: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert run("quantize", f16, "Q8_0", "-o", tmp_path) == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [(["-t", "0"], "--threads is 0"), (["--imatrix", "absent.gguf"], "absent.gguf: no such file")],
)
def test_bad_arguments(
    f16: Path, tmp_path: Path, capsys: Any, args: list[str], message: str
) -> None:
    assert message in refusal(capsys, "quantize", f16, "Q8_0", "-o", tmp_path / "out", *args)


def test_an_importance_matrix_of_another_model_is_refused(
    bundle_dir: BundleDir, imatrix: Path, tmp_path: Path, capsys: Any
) -> None:
    heads = bundle_dir("heads", types="default")
    error = refusal(capsys, "quantize", heads, "Q4_0", "-o", tmp_path / "out", "--imatrix", imatrix)
    assert "has 256 columns, the decoder's has 512: collected from another model" in error


def test_weights_that_no_type_can_hold_are_refused(tmp_path: Path) -> None:
    for value, message in ((np.nan, "NaN or infinity"), (1e38, "no finite number")):
        folder = tmp_path / str(value)
        folder.mkdir()
        data = foreign_decoder_bytes(h=with_fields(DECODER, n_embd=32, n_ff=32))
        (folder / "x.gguf").write_bytes(data)
        with GGUFFile.open(folder / "x.gguf") as file:
            offset = file.tensors["blk.1.ffn_down.weight"].offset
        spoiled = bytearray(data)
        spoiled[offset : offset + 4] = np.float32(value).tobytes()
        (folder / "x.gguf").write_bytes(spoiled)
        with pytest.raises(ModelFileError, match=rf"blk\.1\.ffn_down\.weight: .*{message}"):
            quantize_bundle(folder, folder / "out", Request(RECIPES["Q4_0"]))
        assert not (folder / "out").exists()


def test_an_interrupted_run_leaves_nothing(f16: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    out = tmp_path / "deep" / "out"
    with pytest.raises(KeyboardInterrupt):
        quantize_bundle(f16, out, Request(RECIPES["Q4_K_M"]), progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_every_byte(f16: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = quantize_bundle(
        f16, tmp_path / "out", Request(RECIPES["Q6_K"]), progress=lambda *now: seen.append(now)
    )
    total = sum(part.n_bytes for part in report.parts)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
