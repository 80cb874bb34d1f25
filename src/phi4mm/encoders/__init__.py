"""The encoders: pixels and mel frames in, embeddings of the decoder's width out.

``siglip`` encodes pictures, ``conformer`` audio; both end in a ``projector``.  Their graphs run on
ggml, through ``native``.  A token here is one row of the result: a soft token of the prompt.
"""
