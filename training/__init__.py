"""Trains the sample model: a small Phi-4-multimodal made from scratch on synthetic data."""
