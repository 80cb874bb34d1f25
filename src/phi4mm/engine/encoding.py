"""Pictures and clips to embeddings, with a cache by content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from phi4mm.encoders.conformer import AudioEncoder
from phi4mm.encoders.siglip import VisionEncoder
from phi4mm.errors import InputError
from phi4mm.modality import AudioProjection
from phi4mm.prompt.medium import Picture, Sound

Embeddings = npt.NDArray[np.float32]  # (n_tokens, n_embd)
_Key = tuple[str, AudioProjection | None]  # content digest, audio projection


class EncoderCache:
    """Embeddings by content, the least recently used dropped beyond a bound in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[_Key, Embeddings] = OrderedDict()
        self._n_bytes = 0

    def get(self, key: _Key) -> Embeddings | None:
        """The embeddings of this content, if they are still here."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: _Key, embeddings: Embeddings) -> None:
        """Keep embeddings, unless they alone exceed the bound."""
        if embeddings.nbytes > self._max_bytes or key in self._entries:
            return
        self._entries[key] = embeddings
        self._n_bytes += embeddings.nbytes
        while self._n_bytes > self._max_bytes:
            _, dropped = self._entries.popitem(last=False)
            self._n_bytes -= dropped.nbytes


class MediaEncoder:
    """Both encoders of a bundle behind one cache.

    Args:
        vision: encoder of pictures, if the bundle has one.
        audio: encoder of clips, if the bundle has one.
        cache_bytes: bound on cached embeddings.
    """

    def __init__(
        self, vision: VisionEncoder | None, audio: AudioEncoder | None, cache_bytes: int
    ) -> None:
        self._vision = vision
        self._audio = audio
        self._cache = EncoderCache(cache_bytes)

    def encode(
        self,
        medium: Picture | Sound,
        projection: AudioProjection | None = None,
        between: Callable[[], None] | None = None,
    ) -> Embeddings:
        """Embeddings of a medium after its projector.

        Args:
            medium: the picture or clip.
            projection: for a clip, which audio projector.
            between: called between crops and audio chunks; may raise ``Cancelled``.

        Raises:
            InputError: this bundle has no encoder for the medium.
        """
        key = (medium.digest, projection)
        if (cached := self._cache.get(key)) is not None:
            return cached
        embeddings = self._compute(medium, projection, between)
        assert len(embeddings) == medium.n_tokens, (len(embeddings), medium.n_tokens)
        self._cache.put(key, embeddings)
        return embeddings

    def _compute(
        self,
        medium: Picture | Sound,
        projection: AudioProjection | None,
        between: Callable[[], None] | None,
    ) -> Embeddings:
        if isinstance(medium, Picture):
            if self._vision is None:
                raise InputError("this bundle has no vision encoder")
            return self._vision.encode(medium.crops(), medium.plan, between=between)
        if self._audio is None:
            raise InputError("this bundle has no audio encoder")
        if projection is None:
            raise InputError("a clip needs an audio projection: 'speech' or 'vision'")
        return self._audio.encode(medium.mel(), projection, between=between)
