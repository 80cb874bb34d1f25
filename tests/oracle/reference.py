"""The reference: the transformers model on a tiny checkpoint, eager, in float32, on the CPU.

It differs from transformers as it stands in three ways, each towards the code that Microsoft
shipped or towards this project's decisions (docs/model.md, "Quirks and disagreements"): the
attention output of masked patches is zero; every clip is encoded on its own; pictures and clips go
through ``frontend``.  Nothing is cached: each answer is one full forward pass.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from oracle import torchvision_shim  # noqa: F401  (before transformers)

# isort: split
import soundfile
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora.layer import LoraLayer
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import Phi4MultimodalConfig, Phi4MultimodalForCausalLM

from oracle import frontend
from oracle.checkpoint import adapter_config
from oracle.sizes import AUDIO_TOKEN, IMAGE_TOKEN, Sizes

Taps = dict[str, list[torch.Tensor]]


class Reference:
    """A checkpoint in the layout of transformers, ready to answer.

    Attributes:
        taps: intermediate tensors of the last call by name, one per medium.
    """

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = Phi4MultimodalConfig.from_pretrained(folder)
        model = Phi4MultimodalForCausalLM._from_config(config, attn_implementation="eager")
        self.model = model.float().eval().requires_grad_(False)
        load(self.model, load_file(folder / "model.safetensors"), tied={"lm_head.weight"})
        for which, adapter in sizes.adapters.items():
            self._load_adapter(folder, which, adapter_config(adapter.rank, adapter.alpha))
        self.model.eval().requires_grad_(False)
        self.taps: Taps = defaultdict(list)
        self._hook_vision()
        self._hook_audio()

    def _load_adapter(self, folder: Path, which: str, config: dict[str, object]) -> None:
        wanted = {k: config[k] for k in ("r", "lora_alpha", "target_modules", "task_type")}
        inject_adapter_in_model(LoraConfig(**wanted), self.model, adapter_name=which)
        tensors = load_file(folder / f"{which}-lora" / "adapter_model.safetensors")
        names = {name: re.sub(r"(lora_[AB])", rf"\1.{which}", name) for name in tensors}
        parameters = dict(self.model.named_parameters())
        if {n for n in parameters if f".{which}.weight" in n} != set(names.values()):
            raise ValueError(f"the {which} adapter does not fill its places")
        for name, place in names.items():
            parameters[place].data.copy_(tensors[name])

    def _hook_vision(self) -> None:
        images = self.model.model.embed_tokens_extend.image_embed
        tower = images.img_processor
        mask = torch.empty(0)

        def keep_mask(module: object, args: tuple, kwargs: dict) -> None:
            nonlocal mask
            mask = kwargs["patch_attention_mask"].flatten(1)[..., None]

        def zero_masked(module: object, args: tuple) -> tuple:
            return (args[0] * mask.to(args[0].dtype).view(*args[0].shape[:2], 1),)

        tower.register_forward_pre_hook(keep_mask, with_kwargs=True)
        for i, layer in enumerate(tower.encoder.layers):
            layer.self_attn.out_proj.register_forward_pre_hook(zero_masked)
            self._tap(layer, f"vis.layer{i}")
        self._tap(images.img_projection_up, "vis.hd_tokens", lambda args, out: args[0])
        self._tap(images.img_projection_down, "vis.projected")

    def _hook_audio(self) -> None:
        audios = self.model.model.embed_tokens_extend.audio_embed
        self._tap(audios.encoder.embed, "aud.subsampled")
        self._tap(audios.encoder, "aud.encoder_out")
        for i, block in enumerate(audios.encoder.encoders):
            self._tap(block, f"aud.block{i}")
            for part in ("feed_forward_in", "self_attn", "conv", "feed_forward_out"):
                self._tap(getattr(block, part), f"aud.block{i}.{part}")
        self._tap(audios.down_proj_for_speech, "aud.projected")
        self._tap(audios.down_proj_for_vision_speech, "aud.projected")

    def _tap(
        self,
        module: torch.nn.Module,
        name: str,
        pick: Callable[[tuple, object], torch.Tensor] | None = None,
    ) -> None:
        def keep(module: object, args: tuple, out: object) -> None:
            value = pick(args, out) if pick else out[0] if isinstance(out, tuple) else out
            self.taps[name].append(value.detach().clone())

        module.register_forward_hook(keep)

    def use_adapter(self, which: str | None) -> None:
        for module in self.model.modules():
            if isinstance(module, LoraLayer):
                module._disable_adapters = which is None
                if which:
                    module.set_adapter(which)

    @torch.no_grad()
    def encode_image(self, image: Image.Image) -> torch.Tensor:
        """A picture to its soft tokens (n, n_embd)."""
        pixels, mask, (rows, columns) = frontend.picture(image)
        n = frontend.picture_tokens(mask, rows, columns)
        extend = self.model.model.embed_tokens_extend.image_embed
        ids = torch.full((1, n), self.token_id(IMAGE_TOKEN))
        room = torch.zeros(1, n, self.model.config.hidden_size)
        canvas = torch.tensor([[rows * 448, columns * 448]])
        return extend(ids, room, pixels[None], canvas, mask[None])[0]

    @torch.no_grad()
    def encode_audio(self, samples: torch.Tensor, rate: int, projection: str) -> torch.Tensor:
        """A clip to its soft tokens (n, n_embd)."""
        mel = torch.from_numpy(frontend.log_mel(samples, rate))
        self.taps["aud.mel"].append(mel)
        n = math.ceil(len(mel) / 8)
        extend = self.model.model.embed_tokens_extend.audio_embed
        ids = torch.full((1, n), self.token_id(AUDIO_TOKEN))
        room = torch.zeros(1, n, self.model.config.hidden_size)
        return extend(
            ids,
            room,
            mel[None],
            audio_embed_sizes=torch.tensor([n]),
            audio_projection_mode=projection,
        )[0]

    def embed(
        self, prompt: str, images: Sequence[Path], audios: Sequence[Path]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (n,) and embeddings (n, n_embd) of a prompt with its media spliced in."""
        self.taps.clear()
        projection = "vision" if images else "speech"
        media = {
            self.token_id(IMAGE_TOKEN): [self.encode_image(Image.open(path)) for path in images],
            self.token_id(AUDIO_TOKEN): [
                self.encode_audio(*soundfile.read(path, dtype="float32"), projection)
                for path in audios
            ],
        }
        rows = [
            (token, media[token].pop(0) if token in media else self.embedding(token))
            for token in self.token_ids(prompt)
        ]
        if any(media.values()):
            raise ValueError("more media than markers in the prompt")
        ids = [token for token, x in rows for _ in range(len(x))]
        return torch.tensor(ids), torch.cat([x for _, x in rows])

    @torch.no_grad()
    def logits(self, embeddings: torch.Tensor, adapter: str | None) -> torch.Tensor:
        """Logits (n, n_vocab) of one full forward pass over embeddings (n, n_embd)."""
        self.use_adapter(adapter)
        return self.model(inputs_embeds=embeddings[None], use_cache=False).logits[0]

    def embedding(self, token: int) -> torch.Tensor:
        return self.model.model.embed_tokens.weight[token][None]

    def token_id(self, token: str) -> int:
        return self.tokenizer.token_to_id(token)

    def token_ids(self, prompt: str) -> list[int]:
        prompt = re.sub(r"<\|image_\d+\|>", IMAGE_TOKEN, prompt)
        prompt = re.sub(r"<\|audio_\d+\|>", AUDIO_TOKEN, prompt)
        return self.tokenizer.encode(prompt, add_special_tokens=False).ids


def load(model: torch.nn.Module, tensors: dict[str, torch.Tensor], tied: set[str]) -> None:
    """Fills a model, and refuses a tensor too many or too few."""
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    missing = {name for name in missing if "inv_freq" not in name} - tied
    if missing or unexpected:
        raise ValueError(f"missing {sorted(missing)}, unexpected {unexpected}")
    model.tie_weights()
