"""How good a bundle's answers are: perplexity, divergence, word errors, picture questions."""
