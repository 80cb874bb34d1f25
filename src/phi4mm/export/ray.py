"""A Ray Serve config that starts the server on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phi4mm.errors import SettingError
from phi4mm.export.yaml_text import yaml_text

IMPORT_PATH = "phi4mm.deploy.ray:app"
_HEAD = """\
# Start it:    serve run {name}          (a cluster of this machine)
#              serve deploy {name}       (a running cluster)
# Every host has phi4mm[ray] installed, and the files named here under the same paths.
"""
_FRONT_CPUS = 0.5
_FRONT_REQUESTS = 1000


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas, and what each may use.

    Attributes:
        min_replicas: always running.
        max_replicas: most of them, when there is work.
        n_cpus: cores of a replica; its threads, unless the server's settings say otherwise.
        n_gpus: accelerators of a replica.
        n_fronts: processes that take requests; with two, one may die.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    n_cpus: float = 1.0
    n_gpus: float = 0.0
    n_fronts: int = 1

    def __post_init__(self) -> None:
        """Refuse what Serve cannot start.

        Raises:
            SettingError: names the field, its value and what would be right.
        """
        for name, least in (("min_replicas", 0), ("n_fronts", 1), ("n_gpus", 0)):
            value = getattr(self, name)
            if value < least:
                raise SettingError(name, f"is {value}: it must be at least {least}")
        if self.n_cpus <= 0:
            raise SettingError("n_cpus", f"is {self.n_cpus}: it must be above 0")
        least, most = max(1, self.min_replicas), self.max_replicas
        if most < least:
            raise SettingError("max_replicas", f"is {most}: it must be at least {least}")


def serve_config(
    args: dict[str, Any], scale: Scale, n_slots: int, name: str, host: str, port: int
) -> str:
    """The config as YAML.

    Args:
        args: settings of a replica, as plain values.
        scale: how many replicas.
        n_slots: conversations that a replica answers at the same time: more than that on the
            average, and another replica is started.
        name: of the file, for the comment.
        host: address of the proxies.
        port: their port.
    """
    resources: dict[str, float] = {"num_cpus": scale.n_cpus}
    if scale.n_gpus:
        resources["num_gpus"] = scale.n_gpus
    model: dict[str, Any] = {"name": "Model", "ray_actor_options": resources}
    if scale.min_replicas == scale.max_replicas:
        model["num_replicas"] = scale.max_replicas
    else:
        model["autoscaling_config"] = {
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            "target_ongoing_requests": n_slots,
        }
    front: dict[str, Any] = {
        "name": "Front",
        "num_replicas": scale.n_fronts,
        "max_ongoing_requests": _FRONT_REQUESTS,
        "ray_actor_options": {"num_cpus": _FRONT_CPUS},
    }
    application: dict[str, Any] = {
        "name": "phi4mm",
        "route_prefix": "/",
        "import_path": IMPORT_PATH,
        "args": args,
        "deployments": [front, model],
    }
    config: dict[str, Any] = {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port},
        "applications": [application],
    }
    return _HEAD.format(name=name) + yaml_text(config)
