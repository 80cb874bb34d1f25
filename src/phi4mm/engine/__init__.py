"""From input chunks to events: contexts, adapters, encoder cache, sampling, scheduling."""
