"""What whoever starts the server decides: of the engine, of limits, and of who may ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from phi4mm.engine.parameters import EngineParams
from phi4mm.modelfile.bundle import Bundle


@dataclass(frozen=True, slots=True)
class BundlePaths:
    """Which files are the model, as ``Bundle.open`` takes them."""

    model: Path
    mmproj: Path | None = None
    vision_lora: Path | None = None
    speech_lora: Path | None = None

    def open(self) -> Bundle:
        """Open and check the bundle.

        Raises:
            ModelFileError: a file is malformed, missing, or does not belong to the others.
        """
        return Bundle.open(
            self.model,
            mmproj=self.mmproj,
            vision_lora=self.vision_lora,
            speech_lora=self.speech_lora,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may hold; each is named in the error of a request beyond it.

    Attributes:
        body_bytes: of a request's body.
        image_pixels: width times height of a picture.
        audio_seconds: length of a clip.
        n_media: pictures and clips of a conversation.
        n_choices: answers to one prompt (``n``).
        request_s: seconds from the start of a request to the end of its answer.
    """

    body_bytes: int = 64 << 20
    image_pixels: int = 100_000_000
    audio_seconds: float = 3600.0
    n_media: int = 32
    n_choices: int = 16
    request_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class MediaAccess:
    """Where media may come from besides the request itself.

    Attributes:
        hosts: names that http(s) URLs may point to; "*" for any.  Empty: none.
        path: folder that ``file://`` URLs may point into.
        max_bytes: of one download or file.
        timeout_s: for one download as a whole.
    """

    hosts: tuple[str, ...] = ()
    path: Path | None = None
    max_bytes: int = 32 << 20
    timeout_s: float = 20.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything the server needs to know when it starts.

    Attributes:
        bundle: the model's files.
        engine: of the engine child.
        served_name: the model's name in the API.
        api_keys: one of them is needed, if there are any.
        cors_origins: web pages that may call; empty: none.
        limits: of one request.
        media: where media may come from.
        log_contents: whether the log holds what is asked and answered.
    """

    bundle: BundlePaths
    engine: EngineParams
    served_name: str = "phi4-mm"
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    media: MediaAccess = field(default_factory=MediaAccess)
    log_contents: bool = False
