"""The reference's side: transformers' model with a checkpoint's weights, eager, float32, the CPU.

It differs from transformers as it stands in four ways, each towards the code that Microsoft shipped
or this project's documented choices (docs/model.md, "Quirks and disagreements"): attention is
eager, since the faster kernels are wrongly causal there; the attention output of masked patches is
zero; every clip is encoded on its own; nothing is cached.  Pictures and clips come through this
project's front ends, whose own parity is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from phi4mm.convert.checkpoint import ADAPTERS, TRANSFORMERS, Checkpoint
from phi4mm.convert.config import ModelConfig, read_config
from phi4mm.convert.rules import DECODER_MATRICES
from phi4mm.convert.tensorfile import SourceTensor
from phi4mm.errors import ModelFileError
from phi4mm.measurement.optional_package import import_optional
from phi4mm.modality import Adapter, AudioProjection
from phi4mm.modelfile.hparams import AudioHParams
from phi4mm.progress import Progress, counter
from phi4mm.prompt.chunk import Prompt, TextChunk
from phi4mm.prompt.medium import Picture, Sound
from phi4mm.verify.case import Array, Stages

_MODEL = "transformers.models.phi4_multimodal.modeling_phi4_multimodal"
_CONFIG = "transformers.models.phi4_multimodal.configuration_phi4_multimodal"
_TIED = "lm_head.weight"
# Placeholders that soft tokens are written over: any two ids do, text never goes there.
_IMAGE_ID, _AUDIO_ID = 1, 2


class Reference:
    """A checkpoint in transformers' model; takes four bytes of memory for each weight.

    Args:
        checkpoint: either layout.
        progress: told of every tensor that is loaded.

    Attributes:
        stages: intermediate tensors of the media encoded since the last ``clear``.

    Raises:
        InputError: the extra ``verify`` is not installed.
        ModelFileError: the checkpoint does not fill transformers' model.
    """

    def __init__(self, checkpoint: Checkpoint, progress: Progress | None = None) -> None:
        self._torch = import_optional("torch", "verify")
        config = read_config(checkpoint)
        self._pool = config.vision.pool
        model_class = import_optional(_MODEL, "verify").Phi4MultimodalForCausalLM
        model = model_class._from_config(hf_config(config), attn_implementation="eager")
        self._model = model.float().eval().requires_grad_(False)
        tensors = _by_reference_name(checkpoint)
        self._load(checkpoint, tensors, progress)
        self._adapter: Adapter | None = None
        for name in ADAPTERS:
            lora = config.adapters[name]
            self._hook_adapter(name, lora.alpha / lora.rank, tensors, config.decoder.n_layer)
        self.stages: Stages = {}
        self._hook_stages()

    def clear(self) -> None:
        """Forget the stages."""
        self.stages.clear()

    def logits(self, prompt: Prompt, more: Iterable[int]) -> Array:
        """Logits (n, n_vocab) of one pass over a prompt and the tokens after it."""
        torch = self._torch
        mode = prompt.mode
        rows = [self._embed(chunk, mode.audio_projection) for chunk in prompt.chunks]
        rows.append(self._embed_ids(tuple(more)))
        self._adapter = mode.adapter
        with torch.no_grad():
            output = self._model(inputs_embeds=torch.cat(rows)[None], use_cache=False)
        logits: Array = output.logits[0].numpy()
        return logits

    def encode_picture(self, picture: Picture) -> Any:
        """A picture to its soft tokens, (n, n_embd)."""
        torch, plan = self._torch, picture.plan
        side = plan.patches_per_side
        mask = np.zeros((1 + plan.n_crops, side, side), np.float32)
        for crop, (rows, cols) in zip(mask, plan.crop_valid, strict=True):
            crop[:rows, :cols] = 1
        images = self._model.model.embed_tokens_extend.image_embed
        ids, room = self._placeholders(_IMAGE_ID, plan.n_tokens)
        canvas = torch.tensor([[plan.canvas_height, plan.canvas_width]])
        pixels = torch.from_numpy(picture.crops())[None]
        with torch.no_grad():
            return images(ids, room, pixels, canvas, torch.from_numpy(mask)[None])[0]

    def encode_sound(self, sound: Sound, projection: AudioProjection) -> Any:
        """A clip to its soft tokens, (n, n_embd)."""
        torch = self._torch
        audios = self._model.model.embed_tokens_extend.audio_embed
        ids, room = self._placeholders(_AUDIO_ID, sound.n_tokens)
        with torch.no_grad():
            return audios(
                ids,
                room,
                torch.from_numpy(sound.mel())[None],
                audio_embed_sizes=torch.tensor([sound.n_tokens]),
                audio_projection_mode=projection,
            )[0]

    def _placeholders(self, token: int, n: int) -> tuple[Any, Any]:
        """Ids and embeddings that soft tokens are written over."""
        torch = self._torch
        return torch.full((1, n), token), torch.zeros(1, n, self._model.config.hidden_size)

    def _embed(self, chunk: object, projection: AudioProjection | None) -> Any:
        if isinstance(chunk, TextChunk):
            return self._embed_ids(chunk.ids)
        if isinstance(chunk, Picture):
            return self.encode_picture(chunk)
        assert isinstance(chunk, Sound)
        assert projection is not None
        return self.encode_sound(chunk, projection)

    def _embed_ids(self, ids: tuple[int, ...]) -> Any:
        return self._model.model.embed_tokens.weight[list(ids)]

    def _load(
        self, checkpoint: Checkpoint, tensors: dict[str, SourceTensor], progress: Progress | None
    ) -> None:
        missing = []
        parameters = list(self._model.named_parameters())
        advance = counter(len(parameters), progress)
        for name, parameter in parameters:
            advance(1)
            if name == _TIED:
                continue
            if name in tensors:
                parameter.data.copy_(self._tensor(tensors[name]).reshape(parameter.shape))
            else:
                missing.append(name)
        for name, buffer in self._model.named_buffers():
            if name in tensors:
                buffer.copy_(self._tensor(tensors[name]).reshape(buffer.shape))
        if missing:
            raise ModelFileError(
                f"{checkpoint.path}: {len(missing)} tensors of transformers' model are missing: "
                f"{', '.join(missing[:3])}"
            )
        self._model.tie_weights()

    def _tensor(self, source: SourceTensor) -> Any:
        return self._torch.from_numpy(source.read(0, source.n_rows).copy())

    def _hook_adapter(
        self, name: Adapter, scale: float, tensors: dict[str, SourceTensor], n_layer: int
    ) -> None:
        """``y = W x + scale * B (A x)`` wherever this adapter is the one in use."""
        for il in range(n_layer):
            for path in DECODER_MATRICES.values():
                stem = f"model.layers.{il}.{path}"
                a, b = (self._tensor(tensors[f"{name}-lora/{stem}.lora_{s}.weight"]) for s in "AB")
                module = self._model.get_submodule(stem)
                module.register_forward_hook(self._adapted(name, scale, a, b))

    def _adapted(self, name: Adapter, scale: float, a: Any, b: Any) -> Callable[..., Any]:
        def hook(_module: object, args: tuple[Any, ...], out: Any) -> Any:
            return out + scale * (args[0] @ a.T @ b.T) if self._adapter == name else out

        return hook

    def _hook_stages(self) -> None:
        extend = self._model.model.embed_tokens_extend
        self._hook_masks(extend.image_embed.img_processor)
        for il, layer in enumerate(extend.image_embed.img_processor.encoder.layers):
            self._tap(layer, f"vis.layer{il}")
        self._tap(extend.image_embed.img_projection_up, "vis.hd_tokens", before=True)
        self._tap(extend.image_embed.img_projection_down, "vis.projected")
        audios = extend.audio_embed
        self._tap(audios.encoder.embed, "aud.subsampled")
        for il, block in enumerate(audios.encoder.encoders):
            self._tap(block, f"aud.block{il}")
        self._tap(audios.encoder, "aud.encoder_out")
        self._tap(audios.down_proj_for_speech, "aud.projected.speech")
        self._tap(audios.down_proj_for_vision_speech, "aud.projected.vision")

    def _hook_masks(self, tower: Any) -> None:
        """Attention output of masked patches becomes zero."""
        seen: list[Any] = [None]

        def keep(_module: object, _args: object, kwargs: dict[str, Any]) -> None:
            seen[0] = kwargs["patch_attention_mask"].flatten(1)[..., None]

        def zero(_module: object, args: tuple[Any, ...]) -> tuple[Any, ...]:
            mask = seen[0].to(args[0].dtype).view(*args[0].shape[:2], 1)
            return (args[0] * mask,)

        tower.register_forward_pre_hook(keep, with_kwargs=True)
        for layer in tower.encoder.layers:
            layer.self_attn.out_proj.register_forward_pre_hook(zero)

    def _tap(self, module: Any, name: str, *, before: bool = False) -> None:
        """Record what a module gives, or what it is given, (..., n_embd) each time."""

        def keep(_module: object, args: tuple[Any, ...], out: Any) -> None:
            value = args[0] if before else out[0] if isinstance(out, tuple) else out
            array = value.detach().numpy()
            pieces = array.reshape(-1, *array.shape[-2:])
            self.stages.setdefault(name, []).extend(piece.copy() for piece in pieces)

        module.register_forward_hook(keep)


def hf_config(config: ModelConfig) -> Any:
    """Transformers' configuration of a checkpoint in either layout.

    Raises:
        InputError: the extra ``verify`` is not installed.
    """
    module, d = import_optional(_CONFIG, "verify"), config.decoder
    rope = {
        "rope_type": "longrope",
        "rope_theta": d.rope_freq_base,
        "partial_rotary_factor": d.n_rot / d.n_embd_head,
        "long_factor": config.rope_long,
        "short_factor": config.rope_short,
        "original_max_position_embeddings": d.n_ctx_orig,
    }
    return module.Phi4MultimodalConfig(
        vocab_size=d.n_vocab,
        hidden_size=d.n_embd,
        intermediate_size=d.n_ff,
        num_hidden_layers=d.n_layer,
        num_attention_heads=d.n_head,
        num_key_value_heads=d.n_head_kv,
        max_position_embeddings=d.n_ctx_train,
        original_max_position_embeddings=d.n_ctx_orig,
        rms_norm_eps=d.rms_eps,
        rope_parameters=rope,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        sliding_window=None,
        vision_config=_vision_config(module, config),
        audio_config=_audio_config(module, config.audio),
    )


def _vision_config(module: Any, config: ModelConfig) -> Any:
    v = config.vision
    return module.Phi4MultimodalVisionConfig(
        hidden_size=v.n_embd,
        intermediate_size=v.n_ff,
        num_hidden_layers=config.n_vision_stored,
        num_attention_heads=v.n_head,
        image_size=v.image_size,
        crop_size=v.image_size,
        patch_size=v.patch_size,
        layer_norm_eps=v.eps,
        feature_layer=v.n_layer - config.n_vision_stored - 1,
        image_token_id=_IMAGE_ID,
    )


def _audio_config(module: Any, a: AudioHParams) -> Any:
    return module.Phi4MultimodalAudioConfig(
        hidden_size=a.n_embd,
        intermediate_size=a.n_ff,
        num_blocks=a.n_layer,
        num_attention_heads=a.n_head,
        kernel_size=a.conv_kernel_size,
        input_size=a.n_mel,
        time_reduction=a.subsampling,
        bias_max_distance=a.bias_distance,
        nemo_conv_channels=a.n_conv,
        ext_pw_out_channel=a.n_embd,
        depthwise_separable_out_channel=a.n_embd,
        audio_token_id=_AUDIO_ID,
    )


def _by_reference_name(checkpoint: Checkpoint) -> dict[str, SourceTensor]:
    """A checkpoint's tensors under the names of transformers' layout."""
    if checkpoint.layout == TRANSFORMERS:
        return checkpoint.tensors
    return {TRANSFORMERS.rename(name): tensor for name, tensor in checkpoint.tensors.items()}
