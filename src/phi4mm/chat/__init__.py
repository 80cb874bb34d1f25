"""The chat of the terminal: session, commands, attachments, saved conversations, completion.

``session`` talks to the model and knows no terminal; ``repl`` reads lines and writes answers.
"""
