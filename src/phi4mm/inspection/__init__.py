"""Says what a GGUF file or a folder of them is, and whether the files make a model together."""

from phi4mm.inspection.bundle import Inspection, inspect_path

__all__ = ["Inspection", "inspect_path"]
