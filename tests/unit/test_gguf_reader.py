"""The strict reader: what is written is read back, and whatever else comes is refused by name."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf as gguf_package
import numpy as np
import pytest
from gguf_builder import Tensor, decoder_bytes, entry, f32, gguf, text
from hypothesis import given, settings
from hypothesis import strategies as st

from phi4mm.errors import ModelFileError
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.header import MAX_HEADER_BYTES, MAX_STRINGS, MAX_TENSORS, parse_header
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.string_walk import short_lengths

HUGE = 1 << 62
SMALL = gguf(
    [
        entry("a.text", "str", "né"),
        entry("a.number", "u32", 7),
        entry("a.flag", "bool", True),
        entry("a.strings", "str[]", ["x", "", "日本"]),
        entry("a.floats", "f32[]", [1.5, 2.5]),
    ],
    [f32("t.one", (3, 5)), Tensor("t.two", (2, 32), int(GGMLType.Q8_0), bytes(range(68)))],
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write_bytes(data: bytes) -> Path:
        path = tmp_path / "m.gguf"
        path.write_bytes(data)
        return path

    return write_bytes


def parse(data: bytes) -> None:
    """Parse and decode everything there is to decode."""
    header = parse_header(memoryview(data), "m.gguf")
    for key in header.metadata:
        header.metadata[key]


# ---- what is written is read back


def test_every_value_type_is_read_back(write: Callable[[bytes], Path]) -> None:
    numbers = {
        "u8": 255, "i8": -128, "u16": 65535, "i16": -5, "u32": 1 << 31, "i32": -9,
        "u64": 1 << 63, "i64": -(1 << 62), "f32": 0.5, "f64": 1e-300, "bool": True,
    }  # fmt: skip
    entries = [entry(f"one.{type_}", type_, value) for type_, value in numbers.items()]
    entries += [
        entry(f"many.{type_}", f"{type_}[]", [value] * 3) for type_, value in numbers.items()
    ]
    entries += [entry("empty.str", "str[]", []), entry("empty.f32", "f32[]", [])]
    with GGUFFile.open(write(gguf(entries))) as file:
        for type_, value in numbers.items():
            assert file.metadata[f"one.{type_}"] == value
            assert type(file.metadata[f"one.{type_}"]) is type(value)
            assert file.metadata[f"many.{type_}"].tolist() == [value] * 3
        assert file.metadata["empty.str"] == []
        assert len(file.metadata["empty.f32"]) == 0


def test_strings_and_tensors_are_read_back(write: Callable[[bytes], Path]) -> None:
    with GGUFFile.open(write(SMALL)) as file:
        assert file.version == 3
        assert file.metadata["a.text"] == "né"
        assert file.metadata["a.strings"] == ["x", "", "日本"]
        assert list(file.tensors) == ["t.one", "t.two"]
        assert file.tensors["t.two"].shape == (2, 32)
        assert file.tensors["t.two"].n_bytes == 68
        assert file.data("t.one").dtype == np.float32
        assert np.array_equal(file.data("t.one"), np.ones((3, 5)))
        assert file.data("t.two").shape == (2, 34)  # bytes of a row of 32 in Q8_0
        assert file.raw("t.two").tobytes() == bytes(range(68))


def test_version_2_and_other_alignments_are_read(write: Callable[[bytes], Path]) -> None:
    data = gguf(
        [entry("general.alignment", "u32", 64)], [f32("a", (3,)), f32("b", (2,))],
        version=2, alignment=64,
    )  # fmt: skip
    with GGUFFile.open(write(data)) as file:
        assert file.version == 2
        assert file.tensors["b"].offset % 64 == 0
        assert file.data("b").tolist() == [1.0, 1.0]


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    writer = gguf_package.GGUFWriter(tmp_path / "w.gguf", "phi3")
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_array("tokenizer.ggml.tokens", ["Ġa", "b"])
    writer.add_array("phi4mm.mel.sample_rates", [16000, 8000])
    writer.add_tensor("m", matrix)
    writer.add_tensor("h", matrix.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(tmp_path / "w.gguf") as file:
        assert file.metadata["general.architecture"] == "phi3"
        assert file.metadata["tokenizer.ggml.tokens"] == ["Ġa", "b"]
        assert file.metadata.entry("phi4mm.mel.sample_rates").type == "i32"
        assert np.array_equal(file.data("m"), matrix)
        assert np.array_equal(file.data("h"), matrix.astype(np.float16))


def test_block_sizes_agree_with_the_gguf_package() -> None:
    known = {int(type_): sizes for type_, sizes in gguf_package.GGML_QUANT_SIZES.items()}
    known[int(GGMLType.Q8_1)] = (32, 36)  # two halves and 32 bytes; the package counts two floats
    for type_ in GGMLType:
        if int(type_) in known:
            assert (type_.block_size, type_.block_bytes) == known[int(type_)], type_.name


def test_a_view_outlives_the_file(write: Callable[[bytes], Path]) -> None:
    file = GGUFFile.open(write(SMALL))
    view = file.data("t.one")
    file.close()
    file.close()
    assert view.sum() == 15
    assert not view.flags.writeable
    assert file.metadata["a.strings"] == ["x", "", "日本"]
    with pytest.raises(ValueError, match="closed"):
        file.data("t.one")


def test_a_vocabulary_of_real_size_is_read_in_a_moment(write: Callable[[bytes], Path]) -> None:
    tokens = [f"token{n}" for n in range(200_064)]
    path = write(gguf([entry("tokens", "str[]", tokens), entry("merges", "str[]", tokens)]))
    start = time.process_time()
    with GGUFFile.open(path) as file:
        assert file.metadata["tokens"] == tokens
        assert len(file.metadata["merges"]) == len(tokens)
    assert time.process_time() - start < 1.5


# Lengths around 256, where a second byte begins to count; NULs and numbers look like lengths.
strings = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.integers(250, 260).map(lambda n: b"x" * n),
        st.sampled_from([b"", bytes(8), bytes(17), struct.pack("<Q", 3), b"\x05" + bytes(7)]),
    ),
    max_size=12,
)


@given(strings)
@settings(max_examples=60)
def test_many_strings_are_passed_over_as_one_by_one(odd: list[bytes]) -> None:
    texts = [b"plain"] * 70 + odd + [b"p"] * 70 + odd
    data = gguf([entry("a", "str[]", texts), entry("b", "u32", 7)])
    header = parse_header(memoryview(data), "m.gguf")
    assert header.metadata["b"] == 7
    walked = header.metadata.entry("a").value
    assert len(walked) == len(texts)
    assert walked._lengths.tolist() == [len(text) for text in texts]


def test_short_strings_are_found_at_once_up_to_the_first_that_is_not() -> None:
    short = [b"t%d" % n for n in range(500)]
    data = b"".join(struct.pack("<Q", len(text)) + text for text in short)
    assert short_lengths(memoryview(data)).tolist() == [len(text) for text in short]
    after = struct.pack("<Q", 256) + b"x" * 256 + data
    assert len(short_lengths(memoryview(data + after))) == len(short)
    assert len(short_lengths(memoryview(after))) == 0
    assert len(short_lengths(memoryview(b"short"))) == 0


# ---- malformed files, each with what is said about it

ONE = f32("t", (4,))
MALFORMED: dict[str, tuple[bytes, str]] = {
    "version 1": (gguf(version=1), "GGUF version 1, must be 2 or 3"),
    "version 4": (gguf(version=4), "GGUF version 4, must be 2 or 3"),
    "big-endian": (gguf(order=">"), "a big-endian GGUF file: only little-endian files can be read"),
    "header cut": (
        gguf()[:12],
        "the header needs 8 bytes at byte 8, but the file has 12: it is truncated or damaged",
    ),
    "countless keys": (
        gguf(n_keys=HUGE),
        f"the header announces {HUGE} metadata keys, at most 4096 are possible: it is damaged",
    ),
    "countless tensors": (
        gguf(n_tensors=HUGE),
        f"the header announces {HUGE} tensors, at most 4096 are possible: it is damaged",
    ),
    "more keys than there are": (
        gguf([entry("a", "u8", 1)], n_keys=2),
        "metadata key 1 needs 8 bytes at byte 38, but the file has 38: it is truncated or damaged",
    ),
    "endless key": (
        gguf([struct.pack("<Q", HUGE)]),
        f"metadata key 0 has a string of {HUGE} bytes, at most 255 are possible",
    ),
    "empty key": (
        gguf([entry("", "u8", 1)]),
        "metadata key 0 has the name '', must be printable ASCII, not empty",
    ),
    "key with NUL": (
        gguf([entry("a\0b", "u8", 1)]),
        r"metadata key 0 has the name 'a\x00b', must be printable ASCII, not empty",
    ),
    "same key twice": (
        gguf([entry("a", "u8", 1), entry("a", "u8", 2)]),
        "metadata key a appears twice",
    ),
    "unknown value type": (
        gguf([text("a") + struct.pack("<I", 99)]),
        "metadata key a has value type 99, must be 0 to 12",
    ),
    "unknown element type": (
        gguf([text("a") + struct.pack("<IIQ", 9, 77, 1)]),
        "metadata key a has value type 77, must be 0 to 12",
    ),
    "array of arrays": (
        gguf([text("a") + struct.pack("<IIQ", 9, 9, 1)]),
        "metadata key a is an array of arrays, which no reader supports",
    ),
    "endless string": (
        gguf([text("a") + struct.pack("<IQ", 8, HUGE)]),
        f"metadata key a has a string of {HUGE} bytes, at most 1048576 are possible",
    ),
    "endless numbers": (
        gguf([text("a") + struct.pack("<IIQ", 9, 6, HUGE)]),
        f"metadata key a needs {4 * HUGE} bytes at byte 49, but the file has 49: "
        f"it is truncated or damaged",
    ),
    "endless strings": (
        gguf([text("a") + struct.pack("<IIQ", 9, 8, HUGE)]),
        f"metadata key a has {HUGE} strings, at most 524288 are possible in a file",
    ),
    "endless string in an array": (
        gguf([text("a") + struct.pack("<IIQQ", 9, 8, 1, HUGE)]),
        f"metadata key a has a string of {HUGE} bytes, at most 1048576 are possible",
    ),
    "string not UTF-8": (
        gguf([entry("a", "str", b"\xff\xfe")]),
        "metadata key a has a string that is not UTF-8: invalid start byte",
    ),
    "string in an array not UTF-8": (
        gguf([entry("a", "str[]", [b"ok", b"\xc3"])]),
        "metadata key a has a string that is not UTF-8: unexpected end of data",
    ),
    "string in an array with NUL": (
        gguf([entry("a", "str[]", ["ok", "x\0y"])]),
        "metadata key a has a string with a NUL character",
    ),
    "boolean of 7": (
        gguf([text("a") + struct.pack("<IB", 7, 7)]),
        "metadata key a has a boolean of 7, must be 0 or 1",
    ),
    "alignment of 0": (
        gguf([entry("general.alignment", "u32", 0)]),
        "general.alignment is 0, must be a power of two, 32 to 65536",
    ),
    "alignment no power of two": (
        gguf([entry("general.alignment", "u32", 48)]),
        "general.alignment is 48, must be a power of two, 32 to 65536",
    ),
    "alignment below that of mapped weights": (
        gguf([entry("general.alignment", "u32", 8)]),
        "general.alignment is 8, must be a power of two, 32 to 65536",
    ),
    "alignment of the wrong type": (
        gguf([entry("general.alignment", "u64", 32)]),
        "general.alignment has type u64, must be u32",
    ),
    "tensor without a name": (
        gguf(tensors=[f32("", (4,))]),
        "tensor 0 has the name '', must be printable ASCII, not empty",
    ),
    "tensor name too long": (
        gguf(tensors=[f32("n" * 64, (4,))]),
        "tensor 0 has a string of 64 bytes, at most 63 are possible",
    ),
    "same tensor twice": (gguf(tensors=[ONE, ONE]), "tensor t appears twice"),
    "no dimensions": (
        gguf(tensors=[Tensor("t", ())]),
        "tensor t has 0 dimensions, must have 1 to 4",
    ),
    "five dimensions": (
        gguf(tensors=[Tensor("t", (1,) * 5)]),
        "tensor t has 5 dimensions, must have 1 to 4",
    ),
    "dimension of 0": (
        gguf(tensors=[Tensor("t", (2, 0))]),
        "tensor t has shape (2, 0), no dimension may be 0",
    ),
    "dimensions that overflow": (
        gguf(tensors=[Tensor("t", (1 << 63, 1 << 63))]),
        f"tensor t ends at byte {(1 << 128) + 96}, but the file has 96: it is truncated",
    ),
    "withdrawn tensor type": (
        gguf(tensors=[Tensor("t", (32,), 4)]),
        "tensor t has type 4, which is not a GGUF tensor type",
    ),
    "unknown tensor type": (
        gguf(tensors=[Tensor("t", (32,), 1 << 31)]),
        f"tensor t has type {1 << 31}, which is not a GGUF tensor type",
    ),
    "row that blocks do not divide": (
        gguf(tensors=[Tensor("t", (2, 33), int(GGMLType.Q8_0), bytes(70))]),
        "tensor t has rows of 33, must be a multiple of 32 for Q8_0",
    ),
    "offset not aligned": (
        gguf(tensors=[ONE, Tensor("u", (4,), 0, bytes(16), offset=33)]),
        "tensor u has offset 33, must be 32 (tensors follow each other, aligned to 32)",
    ),
    "tensors that overlap": (
        gguf(tensors=[ONE, Tensor("u", (4,), 0, bytes(16), offset=0)]),
        "tensor u has offset 0, must be 32 (tensors follow each other, aligned to 32)",
    ),
    "offset outside the file": (
        gguf(tensors=[Tensor("t", (4,), 0, bytes(16), offset=HUGE)]),
        f"tensor t has offset {HUGE}, must be 0 (tensors follow each other, aligned to 32)",
    ),
    "data cut": (
        gguf(tensors=[f32("t", (100,))])[:-200],
        "tensor t ends at byte 464, but the file has 280: it is truncated",
    ),
    "something after the end": (
        gguf(tensors=[ONE]) + bytes(7),
        "7 bytes follow the last tensor, where the file must end: it is damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_refused_in_one_line(name: str) -> None:
    data, message = MALFORMED[name]
    with pytest.raises(ModelFileError) as caught:
        parse(data)
    assert str(caught.value) == f"m.gguf: {message}"
    assert "\n" not in str(caught.value)


OTHER_FILES = {
    b"": "an empty file, must be a GGUF file",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n": (
        "a Git LFS pointer, not the file itself: fetch it with git lfs pull"
    ),
    struct.pack("<Q", 20) + b'{"a":{"dtype":"F32"}}': (
        "a safetensors file, must be a GGUF file: make one with phi4mm convert"
    ),
    b"PK\x03\x04 archive": "a zip archive or PyTorch checkpoint, must be a GGUF file",
    b"\n<!DOCTYPE html><html>": "a web page, not a GGUF file: the download went wrong",
    b"ggml....": "not a GGUF file: it begins with b'ggml', must begin with b'GGUF'",
}


@pytest.mark.parametrize("data", OTHER_FILES)
def test_other_kinds_of_file_are_named(write: Callable[[bytes], Path], data: bytes) -> None:
    path = write(data)
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)
    assert str(caught.value) == f"{path}: {OTHER_FILES[data]}"


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path, f"{tmp_path}: a folder, must be a GGUF file"),
        (tmp_path / "none.gguf", f"{tmp_path / 'none.gguf'}: no such file"),
        (Path("/dev/null"), "/dev/null: not a regular file, must be a GGUF file"),
        (Path("a\0b"), r"'a\x00b': cannot be read: embedded null byte"),
    ):
        with pytest.raises(ModelFileError) as caught:
            GGUFFile.open(path)
        assert str(caught.value) == message


# ---- any bytes at all


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_random_bytes_give_a_file_or_a_model_file_error(noise: bytes) -> None:
    for data in (noise, SMALL[:4] + noise, SMALL[:24] + noise, SMALL[:90] + noise):
        try_parse(data)


def test_every_truncation_is_refused() -> None:
    end_of_data = len(SMALL) - 28  # padding after the last tensor may be missing
    for n in range(len(SMALL)):
        if n >= end_of_data:
            parse(SMALL[:n])
        else:
            with pytest.raises(ModelFileError):
                parse(SMALL[:n])


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_bit_flips_give_a_file_or_a_model_file_error(data: st.DataObject) -> None:
    flipped = bytearray(SMALL)
    for bit in data.draw(st.lists(st.integers(0, 8 * 320 - 1), min_size=1, max_size=4)):
        flipped[bit // 8] ^= 1 << bit % 8
    try_parse(bytes(flipped))


@given(st.integers(0, 40_000), st.binary(min_size=1, max_size=16))
@settings(max_examples=300, deadline=None)
def test_bytes_overwritten_in_a_decoder_give_a_file_or_an_error(at: int, noise: bytes) -> None:
    data = DECODER_BYTES[:at] + noise + DECODER_BYTES[at + len(noise) :]
    try_parse(data)


DECODER_BYTES = decoder_bytes()


def try_parse(data: bytes) -> None:
    """Parse, and let pass only errors of the right kind and form, in under a second."""
    message, start = "m.gguf: ", time.process_time()
    try:
        parse(data)
    except ModelFileError as error:
        message = str(error)
    assert time.process_time() - start < 1.0
    assert message.startswith("m.gguf: ")
    assert "\n" not in message


def bytes_entry(key: str, n: int) -> bytes:
    """An array of ``n`` u8."""
    return text(key) + struct.pack("<IIQ", 9, 0, n) + bytes(n)


HOSTILE = {
    "as many strings as may be": lambda: gguf([entry("a", "str[]", [b"ab"] * MAX_STRINGS)]),
    "as many empty strings as may be": lambda: gguf([entry("a", "str[]", [b""] * MAX_STRINGS)]),
    "strings that stop the search for short ones": lambda: gguf(
        [entry("a", "str[]", [b"a" * 256] * 60_000)]
    ),
    "strings of wide characters": lambda: gguf(
        [entry(f"a{n}", "str", "a" * ((1 << 20) - 4) + "\U0001f600") for n in range(15)]
    ),
    "one array that fills the header": lambda: gguf(
        [entry("a", "str[]", [b"a" * (1 << 20)] * 15)]
    ),
    "numbers that fill the header": lambda: gguf([bytes_entry("a", 15 << 20)]),
    "a header without end": lambda: gguf([bytes_entry(f"a{n}", 6 << 20) for n in range(4)]),
    "as many tensors as may be": lambda: gguf(
        tensors=[Tensor(f"tensor.{n}", (1, 1, 1, 1), 0, bytes(4)) for n in range(MAX_TENSORS)]
    ),
    "counts and nothing behind": lambda: gguf(n_tensors=MAX_TENSORS, n_keys=4096),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_cost_little(name: str) -> None:
    data = HOSTILE[name]()
    try_parse(data)
    tracemalloc.start()
    try:
        with suppress(ModelFileError):
            parse(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20


def test_a_header_has_an_end() -> None:
    with pytest.raises(ModelFileError) as caught:
        parse(HOSTILE["a header without end"]())
    assert str(caught.value) == (
        f"m.gguf: metadata key a2 reaches past {MAX_HEADER_BYTES >> 20} MiB, "
        f"the most a header may have: the file is damaged"
    )
