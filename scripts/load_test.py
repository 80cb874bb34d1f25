"""Puts a server under load: many clients, all modalities, some that go away, an engine that dies.

Starts a server of its own.  Each greedy answer is compared with the one that the server gave before
the load, up to the first token whose lead is small: what is computed beside a request must not
change it.  Memory of the server and of its engine is sampled each second; in the last third of the
time the engine is killed, as often as asked.

    python scripts/load_test.py --clients 64 --seconds 600 --kills 5
    python scripts/load_test.py -m BUNDLE --clients 8 --seconds 60 --kills 1

The last line is one JSON object.  What in it is not as it should be is said on standard error, and
then the exit code is 1.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import create_server
from threading import Lock, Thread
from typing import Any

import numpy as np
from load_questions import Question, questions

LEAVING, STREAMING = 0.2, 0.3  # shares of the requests
WARM_UP = 0.25  # of the time: memory may grow
KILLS_FROM = 2 / 3  # of the time
MOST_GROWTH = 1.0  # percent of the resident memory in a minute
MOST_RECOVERY_S = 5.0


@dataclass
class Tally:
    """What happened, under one lock."""

    lock: Lock = field(default_factory=Lock)
    outcomes: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, outcome: str, question: Question, seconds: float, detail: object = "") -> None:
        """Count one request, and keep the first of each kind of trouble."""
        with self.lock:
            self.outcomes[outcome] += 1
            if outcome == "right":
                self.latencies.append(seconds)
            elif outcome != "left":
                self.examples.setdefault(outcome, f"{question.name}: {detail}"[:2000])


class Server:
    """A server of this machine, by its port."""

    def __init__(self, port: int) -> None:
        self._port = port

    @contextmanager
    def _answer(
        self, method: str, path: str, body: bytes | None = None, kind: str = ""
    ) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        try:
            connection.request(method, path, body, {"Content-Type": kind} if kind else {})
            yield connection
        finally:
            connection.close()

    def ask(self, question: Question) -> tuple[int, Any]:
        """(status, answer)."""
        with self._answer("POST", question.path, question.body, question.content_type) as sent:
            answer = sent.getresponse()
            return answer.status, json.loads(answer.read())

    def stream(self, question: Question) -> tuple[int, Any]:
        """(status, answer) of a stream that is read to its end; the status may come in it."""
        with self._answer("POST", question.path, question.streamed, question.content_type) as sent:
            answer = sent.getresponse()
            if answer.status != 200:
                return answer.status, json.loads(answer.read())
            lines = answer.read().decode().splitlines()
        events = [json.loads(x[6:]) for x in lines if x.startswith("data: {")]
        if events and "error" in events[-1]:
            is_death = events[-1]["error"]["code"] == "engine_unavailable"
            return 503 if is_death else 500, events[-1]
        return 200, question.from_events(events)

    def leave(self, question: Question, n_bytes: int) -> None:
        """Begin a stream and go away after some of it."""
        with self._answer("POST", question.path, question.streamed, question.content_type) as sent:
            if n_bytes:
                sent.getresponse().read(n_bytes)

    def get(self, path: str) -> tuple[int, Any]:
        """(status, JSON)."""
        with self._answer("GET", path) as sent:
            answer = sent.getresponse()
            return answer.status, json.loads(answer.read())

    def is_well(self) -> bool:
        """Whether the engine is ready."""
        try:
            return self.get("/health")[0] == 200
        except ConnectionRefusedError:
            return False


@contextmanager
def started(args: argparse.Namespace) -> Iterator[tuple[Server, int]]:
    """A server that is ready, and its process id; it ends with the block."""
    with create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "phi4mm", "serve", "--port", str(port), "-np", str(args.slots)]
    command += ["--max-waiting", str(args.max_waiting), "-t", str(args.threads)]
    command += [] if args.model is None else ["-m", str(args.model)]
    with subprocess.Popen(command, stderr=args.log) as process:
        try:
            server = Server(port)
            while not server.is_well():
                if process.poll() is not None:
                    raise SystemExit(f"the server did not start: {' '.join(command)}")
                time.sleep(0.2)
            yield server, process.pid
        finally:
            process.terminate()


def run_client(
    server: Server, expected: list[tuple[Question, Any]], tally: Tally, deadline: float
) -> None:
    """Ask until the time is over; some answers are streamed, and some not waited for."""
    while time.monotonic() < deadline:
        question, right_answer = random.choice(expected)
        began, draw = time.monotonic(), random.random()
        try:
            if draw < LEAVING:
                server.leave(question, random.choice([0, 1, 200, 800]))
                tally.note("left", question, 0)
                continue
            ask = server.stream if draw < LEAVING + STREAMING else server.ask
            status, answer = ask(question)
        except (OSError, http.client.HTTPException) as error:
            tally.note(type(error).__name__, question, 0, error)
            continue
        if status == 200:
            outcome = "right" if question.is_right(answer, right_answer) else "wrong"
            tally.note(outcome, question, time.monotonic() - began, answer)
        else:
            tally.note(str(status), question, 0, answer)
            time.sleep(2 * random.random())  # impatient: Retry-After asks for more


def engine_pid(pid: int) -> int | None:
    """The server's engine process; None while there is none."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        except FileNotFoundError:
            continue
    return None


def rss_mib(pid: int) -> float | None:
    """Resident memory of a process; None if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def slope_percent_per_minute(samples: list[tuple[float, float]]) -> float:
    """Growth of (second, MiB) by the least squares."""
    if len(samples) < 2:
        return math.nan
    t, y = np.array(samples).T
    return float(100 * 60 * np.polyfit(t, y, 1)[0] / y.mean())


@dataclass
class Watch:
    """What was seen of the processes.

    Attributes:
        server: (seconds since the beginning, MiB of resident memory).
        engine: the same of the engine before it is killed.
        recoveries: seconds until the server was well again.
    """

    server: list[tuple[float, float]] = field(default_factory=list)
    engine: list[tuple[float, float]] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    def run(self, args: argparse.Namespace, server: Server, pid: int) -> None:
        """Sample memory, and kill the engine as often as asked."""
        began, step = time.monotonic(), args.seconds * (1 - KILLS_FROM) / (args.kills + 1)
        kills = [args.seconds * KILLS_FROM + step * i for i in range(args.kills)]
        while (now := time.monotonic() - began) < args.seconds:
            engine = engine_pid(pid)
            self._sample(self.server, pid, now)
            if engine is not None and not self.recoveries:
                self._sample(self.engine, engine, now)
            if engine is not None and kills and now > kills[0]:
                kills.pop(0)
                os.kill(engine, signal.SIGKILL)
                self.recoveries.append(wait_recovered(server))
            time.sleep(1)

    def _sample(self, samples: list[tuple[float, float]], pid: int, now: float) -> None:
        if (mib := rss_mib(pid)) is not None:
            samples.append((now, mib))

    def report(self, seconds: float) -> dict[str, Any]:
        """Memory at the end and how it grew, recoveries."""
        series = {"server": self.server, "engine": self.engine}
        warm = {n: [s for s in found if s[0] > WARM_UP * seconds] for n, found in series.items()}
        return {
            "rss_mib": {n: round(s[-1][1], 1) for n, s in series.items()},
            "rss_percent_per_minute": {
                n: round(slope_percent_per_minute(s), 2) for n, s in warm.items()
            },
            "recoveries_s": [round(s, 2) for s in self.recoveries],
        }


def wait_recovered(server: Server) -> float:
    """Seconds from now until the server is well again after it was not."""
    began = time.monotonic()
    while server.is_well() and time.monotonic() - began < MOST_RECOVERY_S:
        time.sleep(0.01)
    while not server.is_well():
        time.sleep(0.05)
    return time.monotonic() - began


def complaints(report: dict[str, Any], n_kills: int) -> list[str]:
    """What is not as it should be."""
    intended = {"right", "left", "429"} | ({"503"} if n_kills else set())
    found = [f"{n} x {o}" for o, n in report["outcomes"].items() if o not in intended]
    found += [
        f"the {name} grows by {slope} % a minute"
        for name, slope in report["rss_percent_per_minute"].items()
        if not slope <= MOST_GROWTH
    ]
    found += [f"recovery took {s} s" for s in report["recoveries_s"] if s > MOST_RECOVERY_S]
    if len(report["recoveries_s"]) != n_kills:
        found.append(f"{len(report['recoveries_s'])} kills instead of {n_kills}")
    if report["slots_leaked"]:
        found.append(f"{report['slots_leaked']} slots are still busy")
    return found


def main() -> int:
    """Run the load and report."""
    args = parse_args()
    tally, watch = Tally(), Watch()
    with started(args) as (server, pid):
        expected = [(question, server.ask(question)[1]) for question in questions()]
        deadline = time.monotonic() + args.seconds
        threads = [
            Thread(target=run_client, args=(server, expected, tally, deadline))
            for _ in range(args.clients)
        ]
        for thread in threads:
            thread.start()
        watch.run(args, server, pid)
        for thread in threads:
            thread.join()
        time.sleep(2)
        n_busy = sum(slot["is_processing"] for slot in server.get("/slots")[1])
    latencies = sorted(tally.latencies) or [math.nan]
    report = {
        "clients": args.clients,
        "seconds": args.seconds,
        "outcomes": dict(tally.outcomes),
        "latency_p50_s": round(latencies[len(latencies) // 2], 2),
        "latency_p99_s": round(latencies[int(len(latencies) * 0.99)], 2),
        **watch.report(args.seconds),
        "slots_leaked": n_busy,
    }
    faults = complaints(report, args.kills)
    for fault in faults:
        print(fault, tally.examples.get(fault.split()[-1], ""), file=sys.stderr)
    for name, value in report.items():
        print(f"{name:24} {value}")
    print(json.dumps(report))
    return int(bool(faults))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, help="default: the built-in sample")
    parser.add_argument("-np", "--slots", type=int, default=8)
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-waiting", type=int, default=48, help="fewer than clients: some 429s")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--kills", type=int, default=0, help="of the engine, in the last third")
    parser.add_argument(
        "--log", type=argparse.FileType("w"), default=subprocess.DEVNULL, help="of the server"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
