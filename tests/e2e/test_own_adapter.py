"""A user's own fine-tuned adapter, and a decoder published by somebody else."""

import json
import shutil

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from phi4mm import Phi4MM
from phi4mm.cli.main import main
from phi4mm.modelfile.bundle import Bundle

PROMPT = "<|user|>one two three<|end|><|assistant|>"


def logits(model_path, **parts):
    with Phi4MM(Bundle.open(model_path, **parts), n_ctx=256, n_threads=1, kv_type="f32") as model:
        return model.logits(PROMPT, adapter="vision")


def test_a_peft_folder_takes_the_place_of_the_vision_adapter(
    bundle_dir, checkpoint_dir, tmp_path, capsys
):
    bundle = bundle_dir("tiny")
    folder = shutil.copytree(checkpoint_dir("tiny") / "vision-lora", tmp_path / "my-vision-lora")
    config = json.loads((folder / "adapter_config.json").read_text())
    config["lora_alpha"] *= 2  # a fine-tuning that doubles what the adapter does
    (folder / "adapter_config.json").write_text(json.dumps(config))
    out = tmp_path / "adapter"
    command = ["convert", folder, "--adapter-for", bundle, "-o", out, "--lora-type", "f32"]
    assert main([str(arg) for arg in command]) == 0
    capsys.readouterr()
    (file,) = out.glob("*.gguf")
    own, original = logits(bundle, vision_lora=file), logits(bundle)
    with Phi4MM(bundle, n_ctx=256, n_threads=1, kv_type="f32") as model:
        plain = model.logits(PROMPT)
    assert np.abs(own - original).max() > 1e-2
    assert np.abs(own - plain).max() > np.abs(original - plain).max()


@pytest.fixture
def published_decoder(sample_path, tmp_path):
    """The sample's decoder as others publish it: no key of this project, one stop token."""
    with Bundle.open(sample_path) as bundle:
        source = GGUFReader(bundle.decoder.path)
    path = tmp_path / "Phi-4-multimodal-Q8_0.gguf"
    writer = GGUFWriter(path, "phi3")
    for field in source.fields.values():
        is_own = field.name.startswith(("phi4mm.", "GGUF.", "general.architecture", "general.type"))
        if is_own or field.name == "tokenizer.ggml.eot_token_id":
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_published_decoder_runs_text(published_decoder, sample_path, capsys):
    assert main(["run", "-t", "1", "-m", str(published_decoder), "-p", "Hello", "-n", "4"]) == 0
    theirs = capsys.readouterr().out
    assert main(["run", "-t", "1", "-m", str(sample_path), "-p", "Hello", "-n", "4"]) == 0
    assert capsys.readouterr().out == theirs


def test_a_published_decoder_says_what_it_lacks(published_decoder, sample_media, capsys):
    picture = sample_media / "picture.png"
    assert (
        main(["run", "-t", "1", "-p", "?", "-m", str(published_decoder), "--image", str(picture)])
        == 2
    )
    assert "encoder" in capsys.readouterr().err
