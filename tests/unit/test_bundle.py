"""Bundles: parts known by what they say, checked against each other, refused by name."""

from __future__ import annotations

import logging
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_builder import (
    AUDIO,
    BUNDLE_ID,
    DECODER,
    OTHER_ID,
    VISION,
    adapter,
    adapter_bytes,
    decoder_bytes,
    entry,
    foreign_decoder_bytes,
    gguf,
    mmproj_bytes,
    write_bundle,
)

from phi4mm.errors import ModelFileError
from phi4mm.modality import MODES, mode_of
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.ggml_type import MATRIX_TYPES, GGMLType
from phi4mm.native import llama

ROOT = Path(__file__).parents[2]
TEXT = mode_of(n_images=0, n_audios=0)
PICTURE = mode_of(n_images=1, n_audios=0)
SOUND = mode_of(n_images=0, n_audios=1)
BOTH = mode_of(n_images=1, n_audios=1)


def refusal(open_bundle: Callable[[], Bundle]) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_bundle()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- whole bundles


def test_a_folder_gives_all_its_parts(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    with Bundle.open(str(folder)) as bundle:
        assert bundle.decoder.hparams == DECODER
        assert bundle.decoder.path == folder / "decoder.gguf"
        assert (bundle.vision, bundle.audio) == (VISION, AUDIO)
        assert {name: part.hparams.scale for name, part in bundle.adapters.items()} == {
            "vision": 2.0,
            "speech": 2.0,
        }
        assert bundle.bundle_id == BUNDLE_ID
        assert bundle.warnings == ()
        assert all(bundle.supports(mode) for mode in MODES.values())


def test_only_what_a_mode_needs_is_left_and_it_still_answers_it(tmp_path: Path) -> None:
    with Bundle.open(write_bundle(tmp_path / "b")) as bundle:
        for mode in (TEXT, PICTURE, SOUND, BOTH):
            part = bundle.only(mode)
            assert part.supports(mode)
            assert set(part.adapters) == ({mode.adapter} - {None})
            assert (part.mmproj is None) == (mode == TEXT)
        assert set(bundle.adapters) == {"vision", "speech"}
        assert not bundle.only(TEXT).supports(PICTURE)


def test_a_decoder_file_gives_the_files_beside_it_with_its_id(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    (folder / "other-decoder.gguf").write_bytes(decoder_bytes(h=replace(DECODER, n_layer=1)))
    (folder / "other-mmproj.gguf").write_bytes(mmproj_bytes(bundle_id=OTHER_ID))
    (folder / "llama.gguf").write_bytes(gguf([entry("general.architecture", "str", "llama")]))
    with Bundle.open(folder / "decoder.gguf") as bundle:
        assert bundle.mmproj is not None
        assert bundle.mmproj.path == folder / "mmproj.gguf"
        assert set(bundle.adapters) == {"vision", "speech"}
        assert bundle.warnings == ()


def test_files_are_known_by_what_they_say_not_by_name(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    for old, new in (("decoder", "tmp"), ("mmproj", "decoder"), ("vision", "mmproj")):
        (folder / f"{old}.gguf").rename(folder / f"{new}.gguf")
    (folder / "tmp.gguf").rename(folder / "vision.GGUF")
    with Bundle.open(folder) as bundle:
        assert bundle.decoder.path.name == "vision.GGUF"
        assert bundle.mmproj is not None
        assert bundle.mmproj.path.name == "decoder.gguf"
        assert bundle.adapters["vision"].path.name == "mmproj.gguf"


def test_unfinished_and_other_files_are_not_looked_at(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    (folder / "decoder2.gguf.part").write_bytes(b"half of it")
    (folder / "README.md").write_bytes(b"text")
    with Bundle.open(folder) as bundle:
        assert bundle.warnings == ()


def test_a_named_file_takes_the_place_of_the_one_found(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    own = tmp_path / "own.gguf"
    own.write_bytes(adapter_bytes(adapter("vision", rank=7)))
    with Bundle.open(folder, vision_lora=own) as bundle:
        assert bundle.adapters["vision"].hparams.rank == 7
        assert bundle.adapters["speech"].hparams.rank == 5
    eyes = tmp_path / "eyes.gguf"
    eyes.write_bytes(mmproj_bytes(audio=None))
    with Bundle.open(folder / "decoder.gguf", mmproj=str(eyes)) as bundle:
        assert bundle.audio is None


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "b"))
    bundle.close()
    bundle.close()
    with pytest.raises(ValueError, match="closed"):
        bundle.decoder.file.data("output_norm.weight")


# ---- what a bundle cannot answer


def test_missing_parts_are_said_per_mode(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b", mmproj=None, speech=None)
    beside = f"beside {folder / 'decoder.gguf'}"
    with Bundle.open(folder) as bundle:
        assert bundle.missing_for(TEXT) is None
        assert bundle.missing_for(PICTURE) == (
            f"this model has no vision encoder: put its mmproj file {beside}, "
            f"or give it with --mmproj"
        )
        assert bundle.missing_for(SOUND) == (
            f"this model has no audio encoder: put its mmproj file {beside}, "
            f"or give it with --mmproj"
        )
    folder = write_bundle(tmp_path / "c", mmproj=mmproj_bytes(audio=None), speech=None)
    with Bundle.open(folder) as bundle:
        assert bundle.supports(PICTURE)
        reason = f"{folder / 'mmproj.gguf'} has no audio encoder: make one with phi4mm convert"
        assert bundle.missing_for(SOUND) == bundle.missing_for(BOTH) == reason
    folder = write_bundle(tmp_path / "d", speech=None)
    with Bundle.open(folder) as bundle:
        assert bundle.supports(BOTH)
        assert bundle.missing_for(SOUND) == (
            f"this model has no speech adapter: put its file beside {folder / 'decoder.gguf'}, "
            f"or give it with --speech-lora"
        )


def test_a_merged_adapter_leaves_only_its_own_modes(tmp_path: Path) -> None:
    merged = decoder_bytes(h=replace(DECODER, merged_adapter="vision"))
    folder = write_bundle(tmp_path / "b", decoder=merged, vision=None, speech=None)
    path = folder / "decoder.gguf"
    with Bundle.open(folder) as bundle:
        assert bundle.warnings == ()
        assert bundle.supports(PICTURE)
        assert bundle.supports(BOTH)
        assert bundle.missing_for(TEXT) == (
            f"{path} has its vision adapter merged in and cannot answer text alone: "
            f"use a bundle converted without --merge"
        )
        assert bundle.missing_for(SOUND) == (
            f"{path} has its vision adapter merged in and cannot answer sound without a picture: "
            f"use a bundle converted without --merge"
        )
    folder = write_bundle(
        tmp_path / "c", decoder=decoder_bytes(h=replace(DECODER, merged_adapter="speech"))
    )
    with Bundle.open(folder) as bundle:
        assert [mode for mode in MODES.values() if bundle.supports(mode)] == [SOUND]
        assert bundle.adapters == {}
        assert len(bundle.warnings) == 2


def test_a_merged_decoder_refuses_an_adapter_by_name(tmp_path: Path) -> None:
    merged = decoder_bytes(h=replace(DECODER, merged_adapter="vision"))
    folder = write_bundle(tmp_path / "b", decoder=merged)
    lora = folder / "vision.gguf"
    assert refusal(lambda: Bundle.open(folder, vision_lora=lora)) == (
        f"{lora}: cannot be used: {folder / 'decoder.gguf'} has its vision adapter merged in "
        f"and takes no other"
    )


# ---- files of others


def test_a_published_decoder_is_text_only_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "published.gguf"
    path.write_bytes(foreign_decoder_bytes())
    with caplog.at_level(logging.WARNING), Bundle.open(path) as bundle:
        assert [mode for mode in MODES.values() if bundle.supports(mode)] == [TEXT]
        assert bundle.warnings == (
            f"{path}: made by another program: that it is the decoder of Phi-4-multimodal "
            f"cannot be checked",
        )
        assert caplog.messages == list(bundle.warnings)


def test_a_published_decoder_without_attention_factor_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "published.gguf"
    path.write_bytes(foreign_decoder_bytes(leave_out=[keys.Decoder.ROPE_ATTN_FACTOR]))
    with Bundle.open(path) as bundle:
        assert bundle.warnings[1] == (
            f"{path}: phi3.rope.scaling.attn_factor is missing: 1 is used where the reference has "
            f"1.11803, so answers will differ"  # sqrt(1 + ln(1024 / 256) / ln(256)) = sqrt(1.25)
        )


def test_a_published_decoder_takes_encoders_and_adapters_that_fit(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b", decoder=foreign_decoder_bytes())
    with Bundle.open(folder) as bundle:
        assert all(bundle.supports(mode) for mode in MODES.values())
        assert bundle.warnings[1] == (
            f"{folder / 'mmproj.gguf'}: its shapes fit {folder / 'decoder.gguf'}, but that both "
            f"are of one model cannot be checked: decoder.gguf has no bundle id"
        )
        assert len(bundle.warnings) == 4
    with Bundle.open(folder / "decoder.gguf") as bundle:  # nothing says that they belong together
        assert bundle.mmproj is None


def test_an_adapter_of_another_program_must_be_given_by_hand(tmp_path: Path) -> None:
    mine = adapter_bytes(
        adapter("vision", bundle_id=None), leave_out=[keys.Adapter.NAME, keys.Own.FORMAT_VERSION]
    )
    folder = write_bundle(tmp_path / "b", vision=mine)
    path = folder / "vision.gguf"
    with Bundle.open(folder) as bundle:
        assert set(bundle.adapters) == {"speech"}
        assert bundle.warnings == (
            f"{path}: left out, the adapter does not say which mode it serves: "
            f"give it with --vision-lora or --speech-lora",
        )
    with Bundle.open(folder / "decoder.gguf", vision_lora=path) as bundle:
        assert bundle.adapters["vision"].hparams.name is None
        assert bundle.warnings == (
            f"{path}: does not say which mode it serves; used as the vision adapter",
            f"{path}: its shapes fit {folder / 'decoder.gguf'}, but that both are of one model "
            f"cannot be checked: vision.gguf has no bundle id",
        )


def test_what_is_no_part_is_left_out_with_a_warning(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    other = folder / "llama.gguf"
    other.write_bytes(gguf([entry("general.architecture", "str", "llama")]))
    with Bundle.open(folder) as bundle:
        assert bundle.warnings == (f"{other}: left out, it is no part of this model",)


def test_a_damaged_file_beside_a_decoder_is_left_out_with_a_warning(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    (folder / "broken.gguf").write_bytes(b"")
    with Bundle.open(folder / "decoder.gguf") as bundle:
        assert bundle.warnings == (
            f"left out: {folder / 'broken.gguf'}: an empty file, must be a GGUF file",
        )


# ---- refused


def test_parts_of_two_models_are_refused_naming_both(tmp_path: Path) -> None:
    strangers = {
        "mmproj": mmproj_bytes(bundle_id=OTHER_ID),
        "speech": adapter_bytes(adapter("speech", bundle_id=OTHER_ID)),
    }
    for name, data in strangers.items():
        folder = write_bundle(tmp_path / name, **{name: data})
        assert refusal(lambda folder=folder: Bundle.open(folder)) == (
            f"{folder / f'{name}.gguf'}: of another model than {folder / 'decoder.gguf'}: "
            f"bundle ids {OTHER_ID} and {BUNDLE_ID}, must be equal"
        )


def test_several_files_for_one_part_are_listed(tmp_path: Path) -> None:
    extra = {
        "decoder": ("-m FILE", decoder_bytes()),
        "mmproj": ("--mmproj FILE", mmproj_bytes()),
        "speech": ("--speech-lora FILE", adapter_bytes(adapter("speech"))),
    }
    for name, (option, data) in extra.items():
        folder = write_bundle(tmp_path / name)
        (folder / "zzz.gguf").write_bytes(data)
        assert refusal(lambda folder=folder: Bundle.open(folder)) == (
            f"{folder}: several files for one part: {name}.gguf, zzz.gguf; choose with {option}"
        )
    with Bundle.open(tmp_path / "decoder" / "zzz.gguf") as bundle:
        assert bundle.decoder.path.name == "zzz.gguf"
    folder = tmp_path / "mmproj"
    with Bundle.open(folder, mmproj=folder / "zzz.gguf") as bundle:
        assert bundle.mmproj is not None


def test_files_in_each_others_place_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    decoder, mmproj, vision, speech = (
        folder / f"{name}.gguf" for name in ("decoder", "mmproj", "vision", "speech")
    )
    cases: list[tuple[Callable[[], Bundle], str]] = [
        (
            lambda: Bundle.open(mmproj),
            f"{mmproj}: this is an mmproj (the encoders), must be a decoder",
        ),
        (lambda: Bundle.open(vision), f"{vision}: this is an adapter, must be a decoder"),
        (
            lambda: Bundle.open(folder, mmproj=decoder),
            f"{decoder}: this is a decoder, must be an mmproj (the encoders)",
        ),
        (
            lambda: Bundle.open(folder, mmproj=vision),
            f"{vision}: this is an adapter, must be an mmproj (the encoders)",
        ),
        (
            lambda: Bundle.open(folder, vision_lora=mmproj),
            f"{mmproj}: this is an mmproj (the encoders), must be an adapter",
        ),
        (
            lambda: Bundle.open(folder, speech_lora=vision),
            f"{vision}: this is the vision adapter, must be the speech adapter",
        ),
        (
            lambda: Bundle.open(decoder, vision_lora=speech),
            f"{speech}: this is the speech adapter, must be the vision adapter",
        ),
    ]
    for open_bundle, message in cases:
        assert refusal(open_bundle) == message


def test_parts_that_do_not_fit_are_refused_naming_both(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b", mmproj=mmproj_bytes(audio=replace(AUDIO, n_embd_out=64)))
    assert refusal(lambda: Bundle.open(folder)) == (
        f"{folder / 'mmproj.gguf'}: the audio projector gives 64 numbers, must be 32 for "
        f"{folder / 'decoder.gguf'}"
    )
    wide = adapter_bytes(adapter("vision"), decoder=replace(DECODER, n_ff=64))
    folder = write_bundle(tmp_path / "c", vision=wide)
    assert refusal(lambda: Bundle.open(folder)) == (
        f"{folder / 'vision.gguf'}: tensor blk.0.ffn_up.weight.lora_b has shape (128, 4), "
        f"must be (96, 4) (as an adapter for {folder / 'decoder.gguf'})"
    )


def test_folders_without_a_decoder_are_refused(tmp_path: Path) -> None:
    assert refusal(lambda: Bundle.open(tmp_path)) == (
        f"{tmp_path}: no decoder in this folder (a .gguf file of architecture phi3)"
    )
    folder = write_bundle(tmp_path / "b", decoder=None)
    assert refusal(lambda: Bundle.open(folder)) == (
        f"{folder}: no decoder in this folder (a .gguf file of architecture phi3)"
    )
    (tmp_path / "config.json").write_text("{}")
    assert refusal(lambda: Bundle.open(tmp_path)) == (
        f"{tmp_path}: a checkpoint, not a bundle: make one with phi4mm convert"
    )
    assert refusal(lambda: Bundle.open(tmp_path / "none")) == f"{tmp_path / 'none'}: no such file"
    other = tmp_path / "llama.gguf"
    other.write_bytes(gguf([entry("general.architecture", "str", "llama")]))
    assert refusal(lambda: Bundle.open(other)) == (
        f"{other}: architecture 'llama', type 'none': must be a decoder"
    )


def test_a_damaged_file_in_a_folder_is_refused(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b", vision=b"")
    assert refusal(lambda: Bundle.open(folder)) == (
        f"{folder / 'vision.gguf'}: an empty file, must be a GGUF file"
    )


# ---- what is accepted, the native library loads

MATRIX_SHAPES = replace(DECODER, n_embd=256, n_ff=256, n_head=8, n_head_kv=4, n_rot=24)


@pytest.mark.parametrize("type_", sorted(MATRIX_TYPES))
def test_libllama_loads_every_type_of_weight_and_adapter(tmp_path: Path, type_: GGMLType) -> None:
    lora = adapter_bytes(adapter("speech", rank=256), decoder=MATRIX_SHAPES, matrix_type=type_)
    decoder = decoder_bytes(h=MATRIX_SHAPES, matrix_type=type_)
    folder = write_bundle(tmp_path / "b", decoder=decoder, mmproj=None, vision=None, speech=lora)
    with Bundle.open(folder) as bundle:
        model = llama.Model(bundle.decoder.path)
        llama.Adapter(model, bundle.adapters["speech"].path)
        assert (model.n_vocab, model.n_layer) == (MATRIX_SHAPES.n_vocab, MATRIX_SHAPES.n_layer)
        model.close()


@pytest.mark.parametrize("leave_out", [[], [keys.Decoder.ROPE_ATTN_FACTOR]])
def test_libllama_loads_decoders_of_others(tmp_path: Path, leave_out: list[str]) -> None:
    path = tmp_path / "published.gguf"
    path.write_bytes(foreign_decoder_bytes(leave_out=leave_out))
    with Bundle.open(path) as bundle:
        model = llama.Model(bundle.decoder.path)
        assert model.n_vocab == bundle.decoder.hparams.n_vocab
        model.close()


# ---- the documentation


def test_the_page_on_the_format_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "gguf_docs.py"))
    assert (ROOT / "docs" / "gguf.md").read_text(encoding="utf-8") == script["page"](), (
        "docs/gguf.md is out of date: run scripts/gguf_docs.py"
    )
