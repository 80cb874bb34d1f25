"""The server on a Ray cluster of its own on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from threading import Thread

from server_process import ServerProcess

START_S = 900  # a cluster is a dozen processes, and the machine may have other work
# Ray's own limits are for machines that have nothing else to do.
PATIENCE = {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "600",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_health_check_timeout_ms": "120000",
}
ENVIRONMENT = {
    **os.environ,
    **PATIENCE,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "OMP_NUM_THREADS": "1",
}


_AGENT_PORTS = (
    "dashboard-agent-grpc", "dashboard-agent-listen", "runtime-env-agent", "metrics-export"
)  # fmt: skip


class LocalCluster:
    """A Ray node of this machine alone, without a dashboard.

    Attributes:
        address: of its head.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="ray-")  # short: it holds sockets
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [
                _program("ray"), "start", "--head", "--block", "--include-dashboard=false",
                "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=6",
                "--object-store-memory=200000000", f"--temp-dir={self._folder}",
                # ports that are given need not be waited for, which Ray does for some seconds only
                *(f"--{name}-port={_free_port()}" for name in _AGENT_PORTS),
            ],
            env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if "Ray runtime started" in line:
                break
        else:
            raise AssertionError("".join(lines))
        self._reader = Thread(target=self._process.stdout.read, daemon=True)
        self._reader.start()

    def owns(self, pid: int) -> bool:
        """Whether a process descends from this node."""
        while pid not in (0, 1, self._process.pid):
            status = Path(f"/proc/{pid}/stat").read_text()
            pid = int(status.rpartition(")")[2].split()[1])
        return pid == self._process.pid

    def stop(self) -> None:
        """End all of its processes."""
        self._process.terminate()
        self._process.wait(120)
        self._reader.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port: int = free.getsockname()[1]
    return port


class RayServer(ServerProcess):
    """A cluster, and ``serve run`` with what ``phi4mm export ray`` writes, in a folder of its own.

    Args:
        folder: for the config.
        flags: of ``phi4mm export ray``.
        delays_s: how fast replicas come and go.
    """

    def __init__(self, folder: Path, *flags: object, delays_s: float | None = None) -> None:
        port = _free_port()
        config = folder / "config.yaml"
        command = [sys.executable, "-m", "phi4mm", "export", "ray", "-o", str(config), "-t", "1"]
        subprocess.run([*command, "--port", str(port), *map(str, flags)], check=True, timeout=300)
        if delays_s is not None:
            _shorten_delays(config, delays_s)
        self.cluster = LocalCluster()
        self.process = subprocess.Popen(
            [_program("serve"), "run", "-a", self.cluster.address, str(config)],
            cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.log: list[str] = []
        self.url = f"http://127.0.0.1:{port}"
        self._reader = Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        self.log.extend(self.process.stdout)

    def wait_ready(self, seconds: float = START_S) -> None:
        self.wait_until(self._is_ready, seconds)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, "".join(self.log[-40:])
        try:
            return self.request("/health")[0] == 200
        except OSError:
            return False

    def replica_pids(self) -> list[int]:
        """Processes of ``Model`` replicas of this cluster."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                is_replica = b"ServeReplica:phi4mm:Model" in (folder / "cmdline").read_bytes()
                is_ours = self.cluster.owns(int(folder.name))
            except (OSError, ValueError):
                continue
            if is_replica and is_ours:
                found.append(int(folder.name))
        return sorted(found)

    def n_replicas(self) -> int:
        """How many replicas answer."""
        status, metrics, _ = self.request("/metrics")
        return metrics.count("\nphi4mm_engine_ready{") if status == 200 else 0

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(300)
        self.cluster.stop()
        self._reader.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def _shorten_delays(config: Path, seconds: float) -> None:
    """Serve's own are half a minute and ten minutes."""
    lines = config.read_text().splitlines()
    (at,) = (i for i, line in enumerate(lines) if "target_ongoing_requests" in line)
    indent = lines[at][: -len(lines[at].lstrip())]
    names = ("upscale_delay_s", "downscale_delay_s", "metrics_interval_s", "look_back_period_s")
    lines[at + 1 : at + 1] = [f"{indent}{name}: {seconds}" for name in names]
    config.write_text("\n".join(lines) + "\n")
