"""Phi-4-multimodal-instruct (text, pictures, sound) on a person's own machine, from GGUF files."""

__version__ = "0.1.0"
