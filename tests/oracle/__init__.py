"""Tiny random checkpoints, the cases run on them, and the reference that wrote the goldens."""
