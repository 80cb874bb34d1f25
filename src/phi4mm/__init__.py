"""Phi-4-multimodal-instruct (text, pictures, sound) on a person's own machine, from GGUF files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phi4mm.api import Phi4MM as Phi4MM
    from phi4mm.engine.event import Event as Event
    from phi4mm.engine.parameters import SamplingParams as SamplingParams
    from phi4mm.errors import Cancelled as Cancelled
    from phi4mm.errors import InputError as InputError
    from phi4mm.errors import MediaError as MediaError
    from phi4mm.errors import ModelFileError as ModelFileError
    from phi4mm.errors import NativeError as NativeError
    from phi4mm.errors import Phi4MMError as Phi4MMError
    from phi4mm.errors import PromptTooLong as PromptTooLong
    from phi4mm.native.device import Offload as Offload
    from phi4mm.prompt.message import Message as Message
    from phi4mm.prompt.message import user_message as user_message

__version__ = "0.1.0"

# Public names by module.  They are imported when first asked for, so that `import phi4mm` and
# `phi4mm --help` do not wait for numpy and the native library.
_PUBLIC = {
    "phi4mm.api": ("Phi4MM",),
    "phi4mm.engine.event": ("Event",),
    "phi4mm.engine.parameters": ("SamplingParams",),
    "phi4mm.errors": (
        "Cancelled",
        "InputError",
        "MediaError",
        "ModelFileError",
        "NativeError",
        "Phi4MMError",
        "PromptTooLong",
    ),
    "phi4mm.native.device": ("Offload",),
    "phi4mm.prompt.message": ("Message", "user_message"),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'phi4mm' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
