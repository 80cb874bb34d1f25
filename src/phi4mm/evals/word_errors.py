"""Word error rate, with the words aligned by jiwer and normalised by whisper-normalizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from phi4mm.measurement.optional_package import import_optional

Normaliser = Literal["whisper", "none"]


@dataclass(frozen=True, slots=True)
class WordErrors:
    """Errors of one transcript or many.

    Attributes:
        n_words: words of the references.
        n_substituted: words that another stands for.
        n_deleted: words that are missing.
        n_inserted: words too many.
    """

    n_words: int = 0
    n_substituted: int = 0
    n_deleted: int = 0
    n_inserted: int = 0

    @property
    def rate(self) -> float:
        """Errors over words; can exceed 1, and is 0 of nothing."""
        n_errors = self.n_substituted + self.n_deleted + self.n_inserted
        return n_errors / self.n_words if self.n_words else float(n_errors > 0)

    @classmethod
    def total(cls, parts: Iterable[WordErrors]) -> WordErrors:
        """Errors of all parts together: long transcripts weigh more."""
        counts = [(p.n_words, p.n_substituted, p.n_deleted, p.n_inserted) for p in parts]
        return cls(*map(sum, zip(*counts, strict=True))) if counts else cls()


class WordScorer:
    """Counts word errors.

    Args:
        normaliser: ``whisper`` spells numbers, contractions and English spellings one way and
            removes punctuation, as published error rates do; ``none`` splits at blanks.

    Raises:
        InputError: the extra ``eval`` is not installed.
    """

    def __init__(self, normaliser: Normaliser) -> None:
        self._jiwer = import_optional("jiwer", "eval")
        self._english: Callable[[str], str] = str
        self._other: Callable[[str], str] = str
        if normaliser == "whisper":
            package: Any = import_optional("whisper_normalizer.english", "eval")
            basic: Any = import_optional("whisper_normalizer.basic", "eval")
            self._english = package.EnglishTextNormalizer()
            self._other = basic.BasicTextNormalizer()

    def count(self, reference: str, hypothesis: str, language: str) -> WordErrors:
        """Errors of one transcript."""
        normalise = self._english if language == "en" else self._other
        right, found = normalise(reference).strip(), normalise(hypothesis).strip()
        if not right:  # jiwer refuses an empty reference
            return WordErrors(n_inserted=len(found.split()))
        output = self._jiwer.process_words(right, found)
        return WordErrors(
            n_words=output.hits + output.substitutions + output.deletions,
            n_substituted=output.substitutions,
            n_deleted=output.deletions,
            n_inserted=output.insertions,
        )
