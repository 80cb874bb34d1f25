"""Load time and peak memory of a bundle, in a process that does nothing else.

``python -m phi4mm.bench.footprint REQUEST`` is that process: it loads the bundle, makes the
requests of a workload, and prints what it saw as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from phi4mm.bench.work import file_bytes
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import NativeError
from phi4mm.measurement.machine import anonymous_bytes
from phi4mm.measurement.workload import Workload
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.device import Offload

_INTERVAL_S = 0.003


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a fresh process needed.

    Attributes:
        open_s: seconds to open and check the files and to build the tokenizer.
        load_s: seconds to load the weights and allocate the contexts after that.
        anonymous_bytes: peak of the memory that no file backs; None where the system does not say.
        mapped_bytes: weights of decoder and encoders, which stay in their mapped files.
    """

    open_s: float
    load_s: float
    anonymous_bytes: int | None
    mapped_bytes: int


def measure_footprint(bundle: Bundle, params: EngineParams, workload: Workload) -> Footprint:
    """Load a bundle in a fresh process and have it answer a workload.

    Raises:
        NativeError: the process failed.
    """
    request = {
        "bundle": _paths(bundle),
        "params": asdict(params),
        "workload": asdict(workload),
    }
    command = [sys.executable, "-m", "phi4mm.bench.footprint", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise NativeError("phi4mm.bench.footprint", done.returncode, lines[-1])
    return Footprint(**json.loads(done.stdout))


def _paths(bundle: Bundle) -> dict[str, str]:
    paths = {"path": bundle.decoder.path}
    if bundle.mmproj is not None:
        paths["mmproj"] = bundle.mmproj.path
    paths |= {f"{name}_lora": part.path for name, part in bundle.adapters.items()}
    return {name: str(path.resolve()) for name, path in paths.items()}


def _params(values: dict[str, Any]) -> EngineParams:
    """What ``asdict`` made of them, after JSON."""
    offload = values["offload"]
    devices = offload["devices"]
    offload |= {"devices": None if devices is None else tuple(devices)}
    return EngineParams(**values | {"offload": Offload(**offload)})


def _answer(request: dict[str, Any]) -> Footprint:
    """Do what a request asks; in the fresh process."""
    from phi4mm.api import Phi4MM

    params = _params(request["params"])
    spec = request["workload"]
    workload = Workload(
        tuple(spec["words"]), spec["picture"] and tuple(spec["picture"]), spec["clip_s"]
    )
    with _peak() as peak:
        began = time.perf_counter()
        model = Phi4MM(
            Bundle.open(**request["bundle"]),
            n_ctx=params.n_ctx,
            n_threads=params.n_threads,
            offload=params.offload,
            kv_type=(params.type_k, params.type_v),
            flash_attention=params.flash_attention,
        )
        opened = time.perf_counter()
        model.load()
        loaded = time.perf_counter()
        workload.run(model)
    mmproj = model.bundle.mmproj
    mapped = file_bytes(model.bundle.decoder.file) + (file_bytes(mmproj.file) if mmproj else 0)
    model.close()
    return Footprint(opened - began, loaded - opened, max(peak) if peak else None, mapped)


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Watch this process's memory; the list holds its peak at the end, or nothing."""
    stop = threading.Event()
    seen: list[int] = []

    def watch() -> None:
        while True:
            now = anonymous_bytes()
            if now is None:
                return
            seen[:] = [max([now, *seen])]
            if stop.wait(_INTERVAL_S):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        stop.set()
        watcher.join()


if __name__ == "__main__":
    print(json.dumps(asdict(_answer(json.loads(sys.argv[1])))))
