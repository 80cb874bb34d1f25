"""What the native library logs, kept off the screen of a person who did not ask for it."""

from __future__ import annotations

import logging


def hush_native_log(*, verbose: bool) -> None:
    """Show none of the library's log without ``-v``.

    It logs an answer that a person stops as an error; of true errors the exception says the same.
    """
    if not verbose:
        logging.getLogger("phi4mm.native").setLevel(logging.CRITICAL)
