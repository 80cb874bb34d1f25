"""Quantising a bundle, and the importance matrix that makes it better."""
