"""What several replicas say of themselves, as one answer: metrics, slots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

# Paths that tell of one process: every replica is asked.
JOINED_PATHS = ("/metrics", "/slots")


def joined(path: str, bodies: Mapping[str, bytes]) -> tuple[bytes, str]:
    """One body, and its type, from the replicas' by their ids."""
    if path == "/metrics":
        return _metrics(bodies), "text/plain; version=0.0.4; charset=utf-8"
    slots: list[dict[str, Any]] = []
    for replica, body in sorted(bodies.items()):
        slots += [{"replica": replica, **slot} for slot in json.loads(body)]
    return json.dumps(slots).encode(), "application/json"


def _metrics(bodies: Mapping[str, bytes]) -> bytes:
    """The same samples, each with the label ``replica``."""
    families: dict[str, Metric] = {}
    for replica, body in sorted(bodies.items()):
        for found in text_string_to_metric_families(body.decode()):
            family = families.setdefault(
                found.name, Metric(found.name, found.documentation, found.type)
            )
            for sample in found.samples:
                family.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
    registry = CollectorRegistry()
    registry.register(_Families(list(families.values())))
    return generate_latest(registry)


class _Families:
    """A collector of samples that were counted elsewhere."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
