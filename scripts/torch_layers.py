"""The encoders' layers in torch, float32, with random weights: for ``speed.py``, as its child.

    python scripts/torch_layers.py N_THREADS

The first line of the standard input holds the sizes of both encoders, each other one asks for
``{"vision": CROPS}`` or ``{"audio": FRAMES}``; the answer is how many seconds that took.  The
reference computes every crop whole, and a clip in chunks.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch.nn import functional


def linear(n_in: int, n_out: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias."""
    return torch.randn(n_out, n_in) * n_in**-0.5, torch.zeros(n_out)


class Vision:
    """SigLIP's blocks, and the projector after 2x2 pooling."""

    def __init__(self, h: dict[str, Any]) -> None:
        n, n_ff = h["n_embd"], h["n_ff"]
        self.n_head, self.pool = h["n_head"], h["pool"]
        self.n_patches = (h["image_size"] // h["patch_size"]) ** 2
        self.patch = linear(3 * h["patch_size"] ** 2, n)
        self.blocks = [
            [linear(n, n) for _ in range(4)] + [linear(n, n_ff), linear(n_ff, n)]
            for _ in range(h["n_layer"])
        ]
        self.projector = [linear(n, h["n_embd_out"]), linear(h["n_embd_out"], h["n_embd_out"])]

    def run(self, n_crops: int) -> None:
        """So many crops at once, as the reference does."""
        x = functional.linear(
            torch.randn(n_crops, self.n_patches, self.patch[0].shape[1]), *self.patch
        )
        n = x.shape[-1]
        for q, k, v, out, up, down in self.blocks:
            y = functional.layer_norm(x, (n,))
            heads = [
                functional.linear(y, *m).view(n_crops, -1, self.n_head, n // self.n_head)
                for m in (q, k, v)
            ]
            a = functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in heads))
            x = x + functional.linear(a.transpose(1, 2).reshape(x.shape), *out)
            y = functional.layer_norm(x, (n,))
            y = functional.gelu(functional.linear(y, *up), approximate="tanh")
            x = x + functional.linear(y, *down)
        side = int(self.n_patches**0.5)
        x = functional.avg_pool2d(x.transpose(1, 2).reshape(n_crops, n, side, side), self.pool)
        x = functional.linear(x.flatten(2).transpose(1, 2), *self.projector[0])
        functional.linear(functional.gelu(x), *self.projector[1])


class Audio:
    """The subsampling, the Conformer's blocks and the projector."""

    def __init__(self, h: dict[str, Any]) -> None:
        n, n_ff, self.chunk = h["n_embd"], h["n_ff"], h["chunk_size"]
        self.n_head, self.n_mel, self.n_conv = h["n_head"], h["n_mel"], h["n_conv"]
        c, self.taps = self.n_conv, h["conv_kernel_size"]
        self.first = torch.randn(c, 1, 3, 3)
        self.stages = [(torch.randn(c, 1, 3, 3), torch.randn(c, c, 1, 1)) for _ in range(2)]
        n_freq = -(-self.n_mel // 8)
        self.embed = linear(c * n_freq, n)
        self.blocks = [
            {
                "ff": [(linear(n, 2 * n_ff), linear(n_ff, n)) for _ in range(2)],
                "attention": [linear(n, n) for _ in range(4)],
                "conv": [linear(n, 2 * n), linear(n, n), linear(n, n)],
                "depthwise": torch.randn(n, 1, self.taps),
            }
            for _ in range(h["n_layer"])
        ]
        self.projector = [linear(n, h["n_embd_out"]), linear(h["n_embd_out"], h["n_embd_out"])]

    def run(self, n_frames: int) -> None:
        """A clip of so many frames."""
        x = functional.conv2d(
            torch.randn(1, 1, n_frames, self.n_mel), self.first, stride=2, padding=1
        )
        for depthwise, pointwise in self.stages:
            x = functional.conv2d(x.relu(), depthwise, stride=2, padding=1, groups=self.n_conv)
            x = functional.conv2d(x, pointwise)
        x = functional.linear(x.relu().transpose(1, 2).flatten(2)[0], *self.embed)
        chunks = torch.stack([
            functional.pad(part, (0, 0, 0, max(0, min(self.chunk, len(x)) - len(part))))
            for part in x.split(self.chunk)
        ])  # fmt: skip
        bias = torch.randn(self.n_head, chunks.shape[1], chunks.shape[1])
        for block in self.blocks:
            chunks = self._block(chunks, block, bias)
        x = functional.linear(chunks.flatten(0, 1), *self.projector[0])
        functional.linear(functional.gelu(x), *self.projector[1])

    def _block(self, x: torch.Tensor, block: dict[str, Any], bias: torch.Tensor) -> torch.Tensor:
        n = x.shape[-1]
        x = x + 0.5 * self._feed_forward(x, *block["ff"][0])
        y = functional.layer_norm(x, (n,))
        q, k, v, out = block["attention"]
        heads = [
            functional.linear(y, *m).view(len(x), -1, self.n_head, n // self.n_head)
            for m in (q, k, v)
        ]
        a = functional.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in heads), attn_mask=bias
        )
        x = x + functional.linear(a.transpose(1, 2).reshape(x.shape), *out)
        first, second, third = block["conv"]
        value, gate = functional.linear(functional.layer_norm(x, (n,)), *first).chunk(2, -1)
        y = (value * functional.silu(gate)).transpose(1, 2)
        y = functional.conv1d(functional.pad(y, (self.taps - 1, 0)), block["depthwise"], groups=n)
        y = functional.silu(functional.linear(y.transpose(1, 2), *second))
        x = x + functional.linear(y, *third)
        x = x + 0.5 * self._feed_forward(x, *block["ff"][1])
        return functional.layer_norm(x, (n,))

    def _feed_forward(self, x: torch.Tensor, up: Any, down: Any) -> torch.Tensor:
        y = functional.linear(functional.layer_norm(x, x.shape[-1:]), *up)
        value, gate = y.chunk(2, -1)
        return functional.linear(value * functional.silu(gate), *down)


def main() -> None:
    """Answer until the input ends."""
    torch.set_num_threads(int(sys.argv[1]))
    sizes = json.loads(sys.stdin.readline())
    kinds = {"vision": Vision, "audio": Audio}
    encoders = {name: kinds[name](h) for name, h in sizes.items() if h is not None}
    print(0.0, flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            ((name, size),) = json.loads(line).items()
            began = time.perf_counter()
            encoders[name].run(size)
            print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
