"""What a model file must contain: keys, tensor names, hyper-parameters, strict reader, bundle.

Nothing here computes with a model or knows the native library; everything above reads a file
through this package, so a file is checked once, here, before anything else sees it.
"""
