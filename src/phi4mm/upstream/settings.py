"""What whoever starts the translator decides."""

from __future__ import annotations

from dataclasses import dataclass

from phi4mm.modality import Adapter


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Where answers come from, and who may ask.

    Attributes:
        url: of the endpoint, without ``/v1``.
        upstream_key: what the endpoint is shown as API key; None for nothing.
        base_model: what the endpoint calls the model without an adapter.
        served_name: the model's name in this API.
        api_keys: one of them is needed, if there are any.
        cors_origins: web pages that may call; empty: none.
        body_bytes: most bytes of a request.
        n_media: most pictures and clips of a conversation.
        request_s: most seconds that the endpoint may be silent.
    """

    url: str
    upstream_key: str | None = None
    base_model: str = "phi4-mm"
    served_name: str = "phi4-mm"
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    body_bytes: int = 64 << 20
    n_media: int = 32
    request_s: float = 3600.0

    def model_for(self, adapter: Adapter | None) -> str:
        """What the endpoint calls the model with this adapter: adapters go by their own names."""
        return adapter or self.base_model
