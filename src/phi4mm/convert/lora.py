"""PEFT's adapter_config.json: rank and alpha, and everything that would change the formula.

The formula of the files is ``y = W x + alpha / rank * B (A x)``.  What PEFT can do besides (a
bias, DoRA, other ranks per layer, trained copies of modules) is refused here by field and value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phi4mm.convert.checkpoint import ADAPTER_CONFIG_FILE, read_json
from phi4mm.convert.fields import Fields

# PEFT field -> what the formula needs; most of them appear in newer versions only
_EXPECTED: Final[dict[str, tuple[object, ...]]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None,),
    "layers_to_transform": (None,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "exclude_modules": (None, []),
}


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Rank and alpha of one adapter; its product is scaled by ``alpha / rank``."""

    rank: int
    alpha: float


def read_lora_config(folder: Path) -> LoraConfig:
    """Read and check a PEFT adapter folder's adapter_config.json.

    With ``use_rslora`` the scale is alpha / sqrt(rank): alpha is returned times sqrt(rank), so that
    the formula of the files gives it.

    Raises:
        ModelFileError: it is missing, or describes something other than plain LoRA.
    """
    path = folder / ADAPTER_CONFIG_FILE
    fields = Fields(path, read_json(path))
    for field, allowed in _EXPECTED.items():
        fields.expect(field, allowed)
    rank, alpha = fields.integer("r"), fields.number("lora_alpha")
    fields.expect("use_rslora", (False, True, None))
    rank_stabilised = fields.values.get("use_rslora") is True
    return LoraConfig(rank, alpha * math.sqrt(rank) if rank_stabilised else alpha)
