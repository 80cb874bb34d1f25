"""What the tests of measuring share."""

from __future__ import annotations

from phi4mm.cli.main import main

_PLACES = [
    (first, second, third)
    for first in ("red", "old", "late")
    for second in ("ship", "lamp", "door")
    for third in ("sea", "hill", "night")
]
TEXT = "\n\n".join(
    f"The {first} {second} is {n} steps from the {third}, and {n * n} from anything else."
    for n, (first, second, third) in enumerate(_PLACES)
)


def run(*args: object) -> int:
    """Run a command in this process."""
    return main([str(arg) for arg in args])
