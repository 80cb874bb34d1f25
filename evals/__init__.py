"""Held-out sets of the sample model's abilities: made from the ``test`` split, without torch."""
