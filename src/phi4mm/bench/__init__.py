"""How fast a bundle is on this machine, and how near to what the machine can do.

Terms, used in the same sense everywhere:

- pp N: prefill of N tokens from an empty cache, in tokens per second;
- tg N: N tokens generated one after the other from an empty cache, in tokens per second;
- TTFT: seconds from a request to its first token, media decoded, encoded and prefilled;
- RTF: seconds of computing per second of sound;
- fraction: the least time the machine could need, over the time it took.
"""
