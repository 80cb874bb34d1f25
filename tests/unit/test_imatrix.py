"""`phi4mm imatrix`: what is collected, the file it is kept in, and what it is good for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from quantized import decoder_of, run, weights

from oracle.stock_imatrix import CHUNK_SIZE, COLUMNS, TEXT
from phi4mm.errors import InputError, ModelFileError, NativeError
from phi4mm.native.batch import Batch
from phi4mm.native.library import load
from phi4mm.native.llama import Context, Model
from phi4mm.native.params import ContextParams
from phi4mm.native.product_observer import ProductObserver, weight_name
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.quantize import collect
from phi4mm.quantize.calibration import Calibration
from phi4mm.quantize.collect import collect_imatrix
from phi4mm.quantize.imatrix_file import ImportanceMatrix, read_imatrix, write_imatrix
from phi4mm.quantize.plan import Request
from phi4mm.quantize.quantize import quantize_bundle
from phi4mm.quantize.recipe import RECIPES

if TYPE_CHECKING:
    from parity.fixtures import BundleDir

CHUNK = 96
GOLDEN = Path(__file__).parents[1] / "goldens" / "imatrix_stock.json"


@pytest.fixture(scope="module")
def f16(bundle_dir: BundleDir) -> Path:
    return bundle_dir("tiny", types="default")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def collect_text(bundle: Path, text: Path, chunk_size: int) -> ImportanceMatrix:
    calibration = Calibration((text.name,), text, chunk_size)
    return collect_imatrix(bundle, calibration, n_threads=1).imatrix


@pytest.fixture(scope="module")
def collected(f16: Path, text: Path) -> ImportanceMatrix:
    return collect_text(f16, text, CHUNK)


# ---- what is collected


def test_every_matrix_has_seen_every_token(f16: Path, collected: ImportanceMatrix) -> None:
    file = decoder_of(f16)
    n_tokens = len(Tokenizer(file.metadata).encode(TEXT))
    assert collected.n_chunks == n_tokens // CHUNK > 1
    matrices = {name: info.shape[1] for name, info in file.tensors.items() if len(info.shape) == 2}
    assert {name: sums.squares.size for name, sums in collected.sums.items()} == matrices
    assert {sums.count for sums in collected.sums.values()} == {collected.n_chunks * CHUNK}


def test_the_first_matrix_sees_the_normed_embeddings(
    f16: Path, collected: ImportanceMatrix
) -> None:
    file = decoder_of(f16)
    ids = Tokenizer(file.metadata).encode(TEXT)[: collected.n_chunks * CHUNK]
    embeddings = weights(file, "token_embd.weight")[ids]
    eps = float(np.float32(file.metadata["phi3.attention.layer_norm_rms_epsilon"]))
    rms = np.sqrt(np.mean(embeddings**2, axis=1, keepdims=True) + eps)
    inputs = embeddings / rms * weights(file, "blk.0.attn_norm.weight")
    expected = np.mean(inputs**2, axis=0)
    np.testing.assert_allclose(collected.sums["blk.0.attn_qkv.weight"].mean, expected, rtol=1e-4)


def test_sums_are_those_of_llama_imatrix(f16: Path, text: Path) -> None:
    golden = json.loads(GOLDEN.read_text())
    found = collect_text(f16, text, CHUNK_SIZE)
    assert found.n_chunks == golden["n_chunks"]
    assert golden["sums"].keys() | {"token_embd.weight"} == found.sums.keys()
    for name, (count, squares) in golden["sums"].items():
        assert found.sums[name].count == count
        # equal to 5e-6 with the kernels of xllamacpp; others sum in another order
        np.testing.assert_allclose(found.sums[name].squares[COLUMNS], squares, rtol=1e-3)


def test_batches_change_nothing_but_rounding(
    f16: Path, text: Path, collected: ImportanceMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "_N_BATCH", 40)
    other = collect_text(f16, text, CHUNK)
    for name, sums in collected.sums.items():
        assert other.sums[name].count == sums.count
        np.testing.assert_allclose(other.sums[name].squares, sums.squares, rtol=5e-3)


# ---- the file


def test_the_command_writes_what_llama_cpp_reads(
    f16: Path, text: Path, collected: ImportanceMatrix, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "new" / "imatrix.gguf"
    assert run("imatrix", f16, "-f", text, "-o", path, "-c", CHUNK, "--chunks", 2, "-t", 1) == 0
    assert f"9 matrices, 2 chunks of {CHUNK} tokens" in capsys.readouterr().out
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["text.txt"]
    assert reader.fields["imatrix.chunk_count"].contents() == 2
    assert reader.fields["imatrix.chunk_size"].contents() == CHUNK
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert {name.rpartition(".")[0] for name in tensors} == collected.sums.keys()
    assert tensors["blk.1.ffn_down.weight.in_sum2"].shape.tolist() == [512, 1]
    assert tensors["blk.1.ffn_down.weight.counts"].data.tolist() == [[2 * CHUNK]]


def test_a_file_reads_as_it_was_written(collected: ImportanceMatrix, tmp_path: Path) -> None:
    write_imatrix(collected, tmp_path / "i.gguf")
    found = read_imatrix(tmp_path / "i.gguf")
    assert (found.datasets, found.n_chunks, found.chunk_size) == (
        ("text.txt",),
        collected.n_chunks,
        CHUNK,
    )
    for name, sums in collected.sums.items():
        assert found.sums[name].count == sums.count
        np.testing.assert_array_equal(found.sums[name].squares, sums.squares)


@pytest.mark.parametrize(
    ("squares", "count", "message"),
    [
        ([1, np.nan], 5, "no sum of squares"),
        ([1, -1], 5, "no sum of squares"),
        ([1, 1], 0, "must be one count"),
    ],
)
def test_impossible_values_are_refused(
    tmp_path: Path, squares: list[float], count: int, message: str
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "i.gguf", "phi3")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["text"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 1)
    writer.add_tensor("x.weight.in_sum2", np.array([squares], np.float32))
    writer.add_tensor("x.weight.counts", np.array([[count]], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=message):
        read_imatrix(tmp_path / "i.gguf")


def test_other_files_are_not_taken_for_one(f16: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"general\.type is 'model', must be 'imatrix'"):
        read_imatrix(decoder_of(f16).path)
    (tmp_path / "old.dat").write_bytes(b"\x09\0\0\0\x15\0\0\0blk.0.attn_qkv.weight")
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        read_imatrix(tmp_path / "old.dat")


# ---- what it is good for


def test_it_lowers_the_weighted_error(
    f16: Path, collected: ImportanceMatrix, tmp_path: Path
) -> None:
    """Of every group of matrices: less of what the logits depend on is lost."""
    path = tmp_path / "i.gguf"
    write_imatrix(collected, path)
    recipe = RECIPES["Q4_K_S"]
    source = decoder_of(f16)
    with_it = quantize_bundle(f16, tmp_path / "with", Request(recipe, imatrix=(collected, path)))
    quantize_bundle(f16, tmp_path / "without", Request(recipe))
    plain = decoder_of(tmp_path / "without")
    for group in with_it.parts[0].groups:
        error = value = 0.0
        for name in (name for name in source.tensors if name.endswith(f"{group.name}.weight")):
            given, stored = weights(source, name), weights(plain, name)
            importance = collected.sums[name].mean.astype(np.float64)
            error += float(np.sum((stored - given) ** 2 @ importance))
            value += float(np.sum(given**2 @ importance))
        assert group.loss is not None
        assert group.loss.weighted is not None
        assert group.loss.weighted < np.sqrt(error / value), group.name


def test_where_it_has_no_say_is_told(
    f16: Path, collected: ImportanceMatrix, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "i.gguf"
    few = {name: sums for name, sums in collected.sums.items() if name != "token_embd.weight"}
    write_imatrix(ImportanceMatrix(few, (), 1, 1), path)
    assert run("quantize", f16, "Q8_0", "-o", tmp_path / "out", "--imatrix", path) == 0
    out = capsys.readouterr().out
    assert "note: the importance matrix has nothing on token_embd.weight" in out
    assert "note: the importance matrix changes nothing" in out
    assert "weighted error" in out


# ---- refusals and failures


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-c", "100000"], "--ctx-size is 100000, must be 1 to 4096"),
        (["-c", "0"], "--ctx-size is 0, must be 1 to 4096"),
        (["-c", "4096"], "tokens, a chunk takes 4096: give more text, or a smaller -c"),
        (["--chunks", "0"], "--chunks is 0"),
        (["-t", "0"], "--threads is 0"),
    ],
)
def test_numbers_that_cannot_be(
    f16: Path, text: Path, tmp_path: Path, capsys: Any, flags: list[str], message: str
) -> None:
    assert run("imatrix", f16, "-f", text, "-o", tmp_path / "i.gguf", *flags) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_texts_that_cannot_be_read(f16: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="not UTF-8 at byte 3"):
        collect_text(f16, tmp_path / "latin.txt", CHUNK)
    with pytest.raises(InputError, match=r"absent\.txt: cannot be read"):
        collect_text(f16, tmp_path / "absent.txt", CHUNK)


def test_no_other_file_is_replaced(f16: Path, text: Path, capsys: Any) -> None:
    model = decoder_of(f16).path
    before = model.read_bytes()
    assert run("imatrix", f16, "-f", text, "-o", model) == 2
    assert "no importance matrix" in capsys.readouterr().err
    assert model.read_bytes() == before


def test_an_interrupt_while_computing_is_raised(
    f16: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(collect._Collector, "add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        collect_text(f16, text, CHUNK)


def test_an_observer_that_fails_fails_once_and_breaks_the_computing_off(f16: Path) -> None:
    def refuse(name: str, rows: object) -> None:
        raise NativeError(name)

    class Counting(ProductObserver):
        n_asked = 0

        def _observe(self, tensor: Any, ask: bool, user_data: Any) -> bool:
            self.n_asked += 1
            return super()._observe(tensor, ask, user_data)

    params = ContextParams(256, 1, 1, n_batch=8, n_ubatch=8)
    whole = Counting(load(), (), refuse)
    failing = Counting(load(), {"blk.0.attn_qkv.weight"}, refuse)
    batch = Batch.of_sequence(np.arange(8, dtype=np.int32))
    with Model(decoder_of(f16).path) as model:
        for observer in (whole, failing):
            with Context(model, params, observer=observer) as context:
                context.decode(batch)
    assert failing.n_asked < whole.n_asked / 2
    with pytest.raises(NativeError, match=r"blk\.0\.attn_qkv\.weight"):
        failing.raise_failure()
    failing.raise_failure()


@pytest.mark.parametrize("name", ["blk.0.ffn_up.weight", "CUDA0#blk.0.ffn_up.weight#0"])
def test_a_weight_that_was_copied_to_a_device_keeps_its_name(name: str) -> None:
    assert weight_name(name) == "blk.0.ffn_up.weight"
