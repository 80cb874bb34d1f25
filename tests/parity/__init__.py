"""The whole project against the goldens of the reference."""
