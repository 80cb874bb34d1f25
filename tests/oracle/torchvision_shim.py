"""Import this before transformers where torchvision was built for another torch.

transformers imports torchvision for this model.  A wheel built for CUDA does not import beside a
CPU build of torch, because the schemas of two compiled operators are missing.  Declaring them is
enough: nothing here calls them.
"""

from __future__ import annotations

import contextlib

import torch

_library = torch.library.Library("torchvision", "DEF")
for _schema in (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
):
    with contextlib.suppress(RuntimeError):
        _library.define(_schema)
