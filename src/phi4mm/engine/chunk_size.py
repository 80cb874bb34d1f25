"""How many tokens of a prompt to compute in one step."""

from __future__ import annotations

TARGET_S = 1.0
_FIRST = 32
# A smaller step costs nearly as much, since it reads the same weights.
_FEWEST = 16


class ChunkSize:
    """Follows the measured speed, so that a step takes about ``TARGET_S`` seconds.

    Args:
        most: the largest step.
        is_shared: whether others may be held up; alone, every step is the largest.

    Attributes:
        n_tokens: the step to take next.
    """

    def __init__(self, most: int, *, is_shared: bool) -> None:
        self._most = most
        self._is_shared = is_shared
        self.n_tokens = min(_FIRST, most) if is_shared else most

    def note(self, n_tokens: int, seconds: float) -> None:
        """Learn from a step that was taken; short ones tell nothing of long ones."""
        if not self._is_shared or n_tokens < self.n_tokens:
            return
        wanted = int(n_tokens * TARGET_S / max(seconds, 1e-6))
        # at most doubled at a time: a step may have been quick by chance
        self.n_tokens = min(max(wanted, _FEWEST), 2 * self.n_tokens, self._most)
