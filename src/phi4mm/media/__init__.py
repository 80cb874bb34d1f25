"""Media front ends: bytes in, float32 arrays out.

``image`` and ``audio`` decode files; ``crops`` and ``mel`` turn the result into what the encoders
take, and say beforehand how many tokens that will be.  Nothing here knows a model file or a native
library: every number of a model comes in through ``params``.
"""
