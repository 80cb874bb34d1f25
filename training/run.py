"""Trains everything, each stage from where it stopped: python -m training.run --run-dir DIR.

Stages run as processes of one thread each, as soon as those they need are finished, --jobs at a
time. SIGTERM or SIGINT ends them after a checkpoint; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from .loop import Loop, Stopped, is_finished
from .plan import STAGES, SYNTHESIS, make_stage
from .speech_synthesis import is_synthesised, synthesise

POLL_S = 5


def finished(run_dir: Path) -> set[str]:
    """Names of the stages that need no more work."""
    done = {n for n, plan in STAGES.items() if is_finished(run_dir, n, plan.schedule)}
    return done | {SYNTHESIS} if is_synthesised(run_dir) else done


def ready(run_dir: Path, running: set[str]) -> list[str]:
    """Stages that could start now, in order."""
    done = finished(run_dir)
    needs = {SYNTHESIS: (), **{name: plan.needs for name, plan in STAGES.items()}}
    return [n for n in needs if n not in done | running and set(needs[n]) <= done]


def start(name: str, run_dir: Path) -> subprocess.Popen[bytes]:
    """One stage as a process; what it prints goes to its folder."""
    (run_dir / name).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "training.run", "--run-dir", str(run_dir), "--stage", name]
    with (run_dir / name / "output.txt").open("ab") as output:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment)


def run_all(run_dir: Path, jobs: int) -> int:
    """Start stages as they become ready; the exit status is that of the first that fails."""
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def stop(*_: object) -> None:
        for process in processes.values():
            process.terminate()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while True:
        for name in ready(run_dir, set(processes))[: jobs - len(processes)]:
            print("starting", name, flush=True)
            processes[name] = start(name, run_dir)
        if not processes:
            return 0
        time.sleep(POLL_S)
        for name, process in list(processes.items()):
            status = process.poll()
            if status is not None:
                del processes[name]
                print(name, "ended with status", status, flush=True)
                if status:
                    stop()
                    return status


def run_stage(name: str, run_dir: Path) -> int:
    """Train one stage in this process; status 3 where it was asked to end early."""
    torch.set_num_threads(1)
    if name == SYNTHESIS:
        synthesise(run_dir)
        return 0
    try:
        Loop(make_stage(name, run_dir), run_dir).run()
    except Stopped:
        return 3
    return 0


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="checkpoints, caches and logs")
    parser.add_argument("--stage", choices=[SYNTHESIS, *STAGES], help="only this stage")
    parser.add_argument("--jobs", type=int, default=2, help="stages at a time, one thread each")
    arguments = parser.parse_args()
    if arguments.stage:
        sys.exit(run_stage(arguments.stage, arguments.run_dir))
    sys.exit(run_all(arguments.run_dir, arguments.jobs))


if __name__ == "__main__":
    main()
