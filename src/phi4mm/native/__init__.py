"""The foreign side: libllama and ggml, opened, checked, and owned by handles that close.

Declarations of C live here and nowhere else.  No model is known here.
"""
