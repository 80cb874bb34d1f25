"""From messages to input chunks: the template, the tokenizer, and media with known token counts."""
