"""One module for each target of ``phi4mm export``."""
