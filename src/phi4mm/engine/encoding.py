"""Pictures and clips to embeddings, with a cache by content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from contextlib import ExitStack

from phi4mm.encoders.conformer import AudioEncoder
from phi4mm.encoders.siglip import VisionEncoder
from phi4mm.engine.embedding_store import Embeddings, EmbeddingStore, Key, encoder_identity
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError
from phi4mm.modality import AudioProjection
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.abort import AbortFlag
from phi4mm.native.ggml import Backend
from phi4mm.native.library import load
from phi4mm.native.product_choice import ProductChoice
from phi4mm.prompt.medium import Picture, Sound


class EncoderCache:
    """Embeddings by content, the least recently used dropped beyond a bound in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, Embeddings] = OrderedDict()
        self._n_bytes = 0

    def get(self, key: Key) -> Embeddings | None:
        """The embeddings of this content, if they are still here."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: Key, embeddings: Embeddings) -> None:
        """Keep embeddings, unless they alone exceed the bound."""
        if embeddings.nbytes > self._max_bytes or key in self._entries:
            return
        self._entries[key] = embeddings
        self._n_bytes += embeddings.nbytes
        while self._n_bytes > self._max_bytes:
            _, dropped = self._entries.popitem(last=False)
            self._n_bytes -= dropped.nbytes


class MediaEncoder:
    """Both encoders of a bundle behind one cache; owns them and their backend.

    Attributes:
        n_hits: how often a medium was in the cache.
        n_misses: how often one had to be encoded.
    """

    def __init__(self, bundle: Bundle, params: EngineParams, abort_flag: AbortFlag) -> None:
        """Make ready the encoders that the bundle has.

        Args:
            bundle: the files.
            params: threads, the device, and the bound of the cache.
            abort_flag: stops an encoder with ``Cancelled`` while it is set.

        Raises:
            InputError: the device is not there.
            NativeError: the native library fails or lacks the memory.
        """
        self._cache = EncoderCache(params.encoder_cache_bytes)
        self._store: EmbeddingStore | None = None
        self._in_progress: set[Key] = set()
        self.n_hits = self.n_misses = 0
        self._vision: VisionEncoder | None = None
        self._audio: AudioEncoder | None = None
        with ExitStack() as stack:
            if (mmproj := bundle.mmproj) is not None:
                if params.encoder_cache_dir is not None:
                    self._store = EmbeddingStore(
                        params.encoder_cache_dir,
                        encoder_identity(bundle),
                        params.encoder_cache_dir_bytes,
                    )
                library = load()
                device = params.offload.encoder_device(library)
                backend = stack.enter_context(Backend(library, params.threads, abort_flag, device))
                backend.prefers_blas = ProductChoice(backend)
                if mmproj.vision is not None:
                    self._vision = VisionEncoder(mmproj.file, mmproj.vision, backend)
                    stack.callback(self._vision.close)
                if mmproj.audio is not None:
                    self._audio = AudioEncoder(mmproj.file, mmproj.audio, backend)
                    stack.callback(self._audio.close)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Free the encoders.  Closing twice does nothing."""
        self._stack.close()

    def steps(
        self, medium: Picture | Sound, projection: AudioProjection | None = None
    ) -> Generator[None, None, Embeddings]:
        """Embeddings of a medium after its projector; pauses between crops and audio chunks.

        While the same medium is being encoded for somebody else, it only waits.

        Differs from the reference: each clip is encoded alone, where the reference pads the clips
        of a prompt to the longest.  So embeddings do not depend on neighbours, and can be cached.

        Args:
            medium: the picture or clip.
            projection: for a clip, which audio projector.

        Raises:
            InputError: this bundle has no encoder for the medium, or a clip lacks a projection.
            Cancelled: the abort flag was set.
        """
        key = (medium.digest, projection)
        while key in self._in_progress:
            yield
        if (cached := self._look_up(key, medium.n_tokens)) is not None:
            self.n_hits += 1
            return cached
        self.n_misses += 1
        self._in_progress.add(key)
        try:
            embeddings = yield from self._compute(medium, projection)
        finally:
            self._in_progress.remove(key)
        assert len(embeddings) == medium.n_tokens, (len(embeddings), medium.n_tokens)
        if medium.is_kept:
            self._cache.put(key, embeddings)
            if self._store is not None:
                self._store.put(key, embeddings)
        return embeddings

    def _look_up(self, key: Key, n_tokens: int) -> Embeddings | None:
        cached = self._cache.get(key)
        if cached is None and self._store is not None:
            cached = self._store.get(key, n_tokens)
            if cached is not None:
                self._cache.put(key, cached)
        return cached

    def _compute(
        self, medium: Picture | Sound, projection: AudioProjection | None
    ) -> Generator[None, None, Embeddings]:
        if isinstance(medium, Picture):
            if self._vision is None:
                raise InputError("this bundle has no vision encoder")
            return self._vision.steps(medium.crops(), medium.plan)
        if self._audio is None:
            raise InputError("this bundle has no audio encoder")
        if projection is None:
            raise InputError("a clip needs an audio projection: 'speech' or 'vision'")
        return self._audio.steps(medium.mel(), projection)
