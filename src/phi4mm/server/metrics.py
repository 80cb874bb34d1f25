"""What the server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from phi4mm.engine.event import Event
from phi4mm.server.engine_client import EngineClient

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "phi4mm_requests", "Requests by path and status.", ("path", "status"), registry=registry
        )
        self._tokens = Counter(
            "phi4mm_tokens",
            "Tokens of finished answers: prompt by kind, cached, generated.",
            ("kind",),
            registry=registry,
        )
        self._first_token = Histogram(
            "phi4mm_first_token_seconds",
            "From a request to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._per_token = Histogram(
            "phi4mm_token_seconds",
            "Between tokens of an answer, its mean.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._encoder = Counter(
            "phi4mm_encoder_seconds", "Spent on pictures and clips.", registry=registry
        )
        self._gauges = {
            name: Gauge(f"phi4mm_{name}", text, registry=registry)
            for name, text in (
                ("slots", "Sequences the engine has room for."),
                ("slots_busy", "Sequences that belong to a request."),
                ("kv_positions", "Positions whose keys and values are kept."),
                ("requests_waiting", "Requests without a slot."),
                ("answers_in_flight", "Answers prepared, waiting or generated."),
                ("encoder_cache_hits", "Media this engine process found in its cache."),
                ("encoder_cache_misses", "Media it had to encode."),
                ("engine_restarts", "Engine processes replaced after they died."),
                ("engine_ready", "1 while the engine can answer."),
            )
        }

    def count_request(self, path: str, status: int) -> None:
        """A request has been answered."""
        self._requests.labels(path, str(status)).inc()

    def count_answer(self, last: Event) -> None:
        """An answer has ended with this event."""
        usage, timings = last.usage, last.timings
        for kind, n in (
            ("text", usage.n_text),
            ("image", usage.n_image),
            ("audio", usage.n_audio),
            ("cached", usage.n_cached),
            ("generated", usage.n_generated),
        ):
            self._tokens.labels(kind).inc(n)
        self._encoder.inc(timings.encode_s)
        if timings.first_token_s is not None:
            self._first_token.observe(timings.first_token_s)
        if usage.n_generated > 1:
            self._per_token.observe(timings.decode_s / (usage.n_generated - 1))

    def text(self, engine: EngineClient) -> bytes:
        """Everything, in Prometheus's text form."""
        slots, lookups = engine.slots, engine.progress.encoder_lookups
        for name, value in (
            ("slots", len(slots)),
            ("slots_busy", sum(slot.is_busy for slot in slots)),
            ("kv_positions", sum(slot.n_computed for slot in slots)),
            ("requests_waiting", engine.progress.n_waiting),
            ("answers_in_flight", engine.n_in_flight),
            ("encoder_cache_hits", lookups[0]),
            ("encoder_cache_misses", lookups[1]),
            ("engine_restarts", engine.n_restarts),
            ("engine_ready", engine.state == "ok"),
        ):
            self._gauges[name].set(value)
        return generate_latest(self._registry)
