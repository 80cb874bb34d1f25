"""Compares a bundle with the checkpoint it was made from: weights, and stage by stage answers."""
