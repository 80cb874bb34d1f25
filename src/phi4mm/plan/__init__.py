"""How much memory a bundle takes at a context size, before anything is loaded."""
