"""Memory of a bundle, item by item.

Sizes come from where the memory is taken: from libllama (``native.dry_run``), from our graphs
planned but not computed, and for the rest from the shapes.  Both contexts are counted, both
adapters, and the largest picture; not the embeddings of earlier media that the engine keeps.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from phi4mm.api import Phi4MM
from phi4mm.bench.work import file_bytes, kv_bytes
from phi4mm.encoders.conformer import AudioEncoder
from phi4mm.encoders.siglip import VisionEncoder
from phi4mm.engine.context_plan import ContextPlan, plan_contexts
from phi4mm.engine.decoder import context_params
from phi4mm.engine.parameters import EngineParams
from phi4mm.measurement.machine import anonymous_bytes
from phi4mm.measurement.workload import noise_clip, noise_picture
from phi4mm.media.crops import plan_crops
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.hparams import VisionHParams
from phi4mm.modelfile.tensors import decoder_matrix_shapes
from phi4mm.native.dry_run import DryBackend, DryModel, weight_bytes
from phi4mm.native.library import load
from phi4mm.prompt.medium import image_params

_CLIP_S: Final = 30.0
_PILLOW_BYTES: Final = 4  # of an RGB pixel; there is the picture, and the picture resized
_ROOM_FOR_WORDS: Final = 64
_CONTEXT_STEP: Final = 256  # libllama rounds a context's size up to a multiple of this

Place = Literal["mapped", "memory"]


@dataclass(frozen=True, slots=True)
class Item:
    """Memory for one purpose.

    Attributes:
        name: the purpose.
        n_bytes: how much.
        place: ``mapped`` stays in a file, so that the system can drop and read it again;
            ``memory`` cannot be dropped.
    """

    name: str
    n_bytes: int
    place: Place


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of a bundle with certain settings.

    Attributes:
        n_ctx: positions per sequence.
        n_slots: sequences at the same time within the original context.
        n_long_slots: sequences at the same time beyond it.
        type_k: element type of cached keys.
        type_v: element type of cached values.
        items: what the memory is for.
    """

    n_ctx: int
    n_slots: int
    n_long_slots: int
    type_k: str
    type_v: str
    items: tuple[Item, ...]

    def bytes_in(self, place: Place) -> int:
        """Memory of one kind."""
        return sum(item.n_bytes for item in self.items if item.place == place)

    @property
    def n_bytes(self) -> int:
        """All of it."""
        return sum(item.n_bytes for item in self.items)


class Planner:
    """Plans memory for one bundle, for any context size.

    What this process holds when it has opened the bundle counts as the program's own share, so use
    it in a process that does nothing else.

    Args:
        model: opened, not loaded; the caller closes it.
        params: cache types and threads.
    """

    def __init__(self, model: Phi4MM, params: EngineParams) -> None:
        self._model = model
        self._bundle: Bundle = model.bundle
        self._params = params
        self._dry = DryModel(self._bundle.decoder.path)
        self._encoders: dict[tuple[int, int] | None, tuple[Item, ...]] = {}  # by picture size
        self._fixed = list(self._fixed_items())

    def close(self) -> None:
        """Free the model without weights.  Closing twice does nothing."""
        self._dry.close()

    def plan(self, params: EngineParams) -> MemoryPlan:
        """Plan for a context size and cache types.

        Raises:
            InputError: a setting is out of range for this model.
        """
        contexts = plan_contexts(params, self._bundle.decoder.hparams)
        items = (
            *self._fixed,
            *self._context_items(params, contexts),
            *self._encoder_items(contexts.n_ctx),
        )
        slots = (params.n_slots, params.n_long_slots)
        return MemoryPlan(contexts.n_ctx, *slots, params.type_k, params.type_v, items)

    def largest_context(self, params: EngineParams, limit: int) -> int | None:
        """The most positions per sequence that fit into so many bytes; None if not even 256 do."""
        h = self._bundle.decoder.hparams

        def fits(n_steps: int) -> bool:
            n_ctx = min(n_steps * _CONTEXT_STEP, h.n_ctx_train)
            return self.plan(replace(params, n_ctx=n_ctx)).n_bytes <= limit

        low, high = 0, -(-h.n_ctx_train // _CONTEXT_STEP)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        return min(low * _CONTEXT_STEP, h.n_ctx_train) if low else None

    def _fixed_items(self) -> Iterator[Item]:
        """What does not depend on the context."""
        bundle = self._bundle
        program = anonymous_bytes()
        if program is not None:
            yield Item("program, tokenizer and vocabulary", program, "memory")
        mapped, laid_out = weight_bytes(bundle.decoder.path)
        yield Item("decoder weights", mapped, "mapped")
        if laid_out:
            yield Item("decoder weights, laid out anew for the kernels", laid_out, "memory")
        if bundle.mmproj is not None:
            yield Item("encoder weights", file_bytes(bundle.mmproj.file), "mapped")
        for name, part in bundle.adapters.items():
            yield Item(f"{name} adapter", file_bytes(part.file), "memory")

    def _context_items(self, params: EngineParams, contexts: ContextPlan) -> Iterator[Item]:
        h = self._bundle.decoder.hparams
        for name, n_ctx, n_slots in (
            ("short", contexts.n_short, params.n_slots),
            ("long", contexts.n_long, params.n_long_slots),
        ):
            if n_ctx is None:
                continue
            n_cached = -(-n_ctx // _CONTEXT_STEP) * _CONTEXT_STEP
            cache = kv_bytes(h, n_slots * n_cached, params.type_k, params.type_v)
            times = f"{n_slots} x " if n_slots > 1 else ""
            yield Item(f"KV cache, {name} context of {times}{n_cached}", cache, "memory")
            context = context_params(params, n_ctx, n_slots)
            compute = self._dry.compute_bytes(context) + self._adapter_bytes(context.n_batch)
            yield Item(f"compute buffer, {name} context", compute, "memory")
            yield Item(f"output rows, {name} context", 4 * h.n_vocab * n_slots, "memory")

    def _adapter_bytes(self, n_batch: int) -> int:
        """An adapter's product with the widest matrix stands beside that matrix's own, at most."""
        if not self._bundle.adapters:
            return 0
        shapes = decoder_matrix_shapes(self._bundle.decoder.hparams)
        return 4 * n_batch * max(n_out for n_out, _ in shapes.values())

    def _encoder_items(self, n_ctx: int) -> tuple[Item, ...]:
        """What the encoders need for the largest picture that the context holds, and for sound."""
        size = None
        if self._bundle.vision is not None:
            size = largest_picture(self._bundle.vision, n_ctx)
        if size not in self._encoders:
            self._encoders[size] = tuple(self._plan_encoders(size))
        return self._encoders[size]

    def _plan_encoders(self, size: tuple[int, int] | None) -> Iterator[Item]:
        mmproj = self._bundle.mmproj
        if mmproj is None:
            return
        with closing(DryBackend(load(), self._params.threads)) as backend:
            peaks = []
            if mmproj.vision is not None and size is not None:
                vision = VisionEncoder(mmproj.file, mmproj.vision, backend)
                peaks.append(self._picture_bytes(vision, *size))
                vision.close()
            if mmproj.audio is not None:
                audio = AudioEncoder(mmproj.file, mmproj.audio, backend)
                peaks.append(self._clip_bytes(audio))
                audio.close()
            yield Item("encoder scratch", backend.n_scratch_bytes, "memory")
        yield Item("pixels, features and embeddings", max(peaks), "memory")

    def _picture_bytes(self, encoder: VisionEncoder, width: int, height: int) -> int:
        image = noise_picture(width, height, seed=0)
        with _traced() as peak:
            picture = self._model.prompts.picture(image)
            assert picture.digest
            encoder.encode(picture.crops(), picture.plan)
        return peak[0] + 2 * _PILLOW_BYTES * width * height

    def _clip_bytes(self, encoder: AudioEncoder) -> int:
        clip = noise_clip(_CLIP_S, encoder.hparams.mel.sample_rates[0], seed=0)
        with _traced() as peak:
            sound = self._model.prompts.sound(clip)
            encoder.encode(sound.mel(), "speech")
        return peak[0]


def largest_picture(h: VisionHParams, n_ctx: int) -> tuple[int, int]:
    """Width and height of a picture of whole crops that fills a context as far as it can.

    One crop, if even that is too large for the context.
    """
    params, side = image_params(h), h.image_size
    grids = [
        (cols * side, rows * side)
        for rows in range(1, h.max_crops + 1)
        for cols in range(rows, h.max_crops // rows + 1)
    ]
    fitting = [
        size for size in grids if plan_crops(*size, params).n_tokens + _ROOM_FOR_WORDS <= n_ctx
    ]
    return max(fitting, key=lambda size: size[0] * size[1], default=(side, side))


@contextmanager
def _traced() -> Iterator[list[int]]:
    """The peak of what Python and numpy allocate inside the block, as the list's only number.

    Results of graphs that were not computed may be anything, so numpy does not warn of them.
    """
    peak: list[int] = []
    tracemalloc.start()
    try:
        with np.errstate(all="ignore"):
            yield peak
        peak.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
