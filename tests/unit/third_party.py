"""A decoder file as llama.cpp's own converter writes it for architecture phi3.

Keys, their types and their order follow ``Phi3MiniModel`` of ``convert_hf_to_gguf`` (llama.cpp
0c1e570): general keys first, no vocabulary size and no type of RoPE scaling, the sliding window
of the config, a tokenizer whose only end is the config's ``eos_token_id``.
"""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader, GGUFWriter, LlamaFileType

from phi4mm.modelfile.bundle import Bundle


def write_third_party(bundle_path: Path, path: Path) -> Path:
    """The decoder of one of our bundles, written as others would."""
    with Bundle.open(bundle_path) as bundle:
        h, source = bundle.decoder.hparams, bundle.decoder.path
    reader = GGUFReader(source)
    writer = GGUFWriter(path, "phi3")
    writer.add_type("model")
    writer.add_name("Phi 4 Multimodal Instruct")
    writer.add_size_label("3.8B")
    writer.add_license("mit")
    writer.add_tags(["nlp", "code", "audio"])
    writer.add_languages(["multilingual", "en"])
    writer.add_context_length(h.n_ctx_train)
    writer.add_rope_scaling_orig_ctx_len(h.n_ctx_orig)
    writer.add_embedding_length(h.n_embd)
    writer.add_feed_forward_length(h.n_ff)
    writer.add_block_count(h.n_layer)
    writer.add_head_count(h.n_head)
    writer.add_head_count_kv(h.n_head_kv)
    writer.add_layer_norm_rms_eps(h.rms_eps)
    writer.add_rope_dimension_count(h.n_rot)
    writer.add_rope_freq_base(h.rope_freq_base)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_sliding_window(2 * h.n_ctx_train)
    writer.add_rope_scaling_attn_factors(h.rope_attn_factor)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    for name, add in (
        ("tokens", writer.add_token_list),
        ("token_type", writer.add_token_types),
        ("merges", writer.add_token_merges),
    ):
        add(reader.fields[f"tokenizer.ggml.{name}"].contents())
    end = int(reader.fields["tokenizer.ggml.eos_token_id"].contents())
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_unk_token_id(end)
    writer.add_pad_token_id(end)
    writer.add_add_bos_token(False)
    if template := reader.fields.get("tokenizer.chat_template"):
        writer.add_chat_template(template.contents())
    writer.add_quantization_version(2)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
