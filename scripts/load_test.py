"""Puts a running server under load: many clients, all modalities, some that go away at random.

Each greedy answer is compared with the one the server gave before the load, up to the first token
whose lead is small: what is computed beside a request must not change it.  Memory of the server and
its engine is sampled; ``--kills`` ends the engine in the middle, that many times.

    python scripts/load_test.py http://127.0.0.1:8080 --pid PID --clients 64 --seconds 600

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import soundfile

MEDIA = Path(__file__).parents[1] / "src" / "phi4mm" / "sample" / "media"
# below this lead of the likeliest token, rounding may choose another one
SURE = 1e-2
N_TOKENS = 16


@dataclass(frozen=True)
class Question:
    """A request, and how its answer is judged."""

    path: str
    content_type: str
    body: bytes
    streamed: bytes
    is_right: Callable[[dict[str, Any], dict[str, Any]], bool]


def questions() -> list[Question]:
    """One request of each kind."""
    picture = base64.b64encode((MEDIA / "picture.png").read_bytes()).decode()
    clip = base64.b64encode((MEDIA / "clip.flac").read_bytes()).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:;base64,{picture}"}}
    sound = {"type": "input_audio", "input_audio": {"data": clip, "format": "flac"}}
    text = {"type": "text", "text": "What is it?"}
    contents = ["Hello", "Tell me a story. " * 8, [image, text], [sound, text], [image, sound]]
    return [*map(chat, contents), recording()]


def chat(content: object) -> Question:
    """A question to the chat API."""
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": N_TOKENS,
        "logprobs": True,
        "top_logprobs": 2,
    }
    return Question(
        "/v1/chat/completions", "application/json",
        json.dumps(body).encode(), json.dumps({**body, "stream": True}).encode(), same_tokens,
    )  # fmt: skip


def recording() -> Question:
    """A transcription in several pieces."""
    samples, rate = soundfile.read(MEDIA / "clip.flac")
    file = io.BytesIO()
    talk = np.concatenate([samples, np.zeros(rate)] * 3)
    soundfile.write(file, talk, rate, format="FLAC")

    def form(*fields: tuple[str, str]) -> bytes:
        parts = [
            f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
            for name, value in (("response_format", "verbose_json"), *fields)
        ]
        head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        return b"".join([*parts, head, file.getvalue(), b"\r\n--x--\r\n"])

    path, kind = "/v1/audio/transcriptions", "multipart/form-data; boundary=x"
    return Question(path, kind, form(), form(("stream", "true")), same_times)


@dataclass
class Tally:
    """What happened, under one lock."""

    lock: Lock = field(default_factory=Lock)
    outcomes: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    n_tokens: int = 0

    def note(self, outcome: str, seconds: float = 0.0, n_tokens: int = 0) -> None:
        """Count one request."""
        with self.lock:
            self.outcomes[outcome] += 1
            self.n_tokens += n_tokens
            if outcome == "right":
                self.latencies.append(seconds)


class Server:
    """A server by its address."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc

    def post(self, question: Question, *, leave_after: int | None = None) -> tuple[int, Any]:
        """(status, answer); leaves after some bytes of a stream if told to."""
        connection = http.client.HTTPConnection(self._netloc, timeout=300)
        try:
            headers = {"Content-Type": question.content_type}
            body = question.body if leave_after is None else question.streamed
            connection.request("POST", question.path, body, headers)
            if leave_after == 0:
                return 0, None
            answer = connection.getresponse()
            if leave_after is not None:
                answer.read(leave_after)
                return 0, None
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, Any]:
        """(status, JSON)."""
        connection = http.client.HTTPConnection(self._netloc, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


def same_times(answer: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether both hear speech at the same times."""
    ours, theirs = (
        [(segment["start"], segment["end"]) for segment in found["segments"]]
        for found in (answer, expected)
    )
    return ours == theirs != []


def same_tokens(answer: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether both take the same tokens wherever the choice is sure."""
    entries = [a["choices"][0]["logprobs"]["content"] for a in (answer, expected)]
    for ours, theirs in zip(*entries, strict=False):
        first, second = theirs["top_logprobs"]
        if first["logprob"] - second["logprob"] < SURE:
            return True
        if ours["bytes"] != theirs["bytes"]:
            return False
    return True


def run_client(
    server: Server, expected: list[tuple[Question, Any]], tally: Tally, deadline: float
) -> None:
    """Ask until the time is over; one in five goes away early."""
    while time.monotonic() < deadline:
        question, right_answer = random.choice(expected)
        began = time.monotonic()
        try:
            if random.random() < 0.2:
                leave_after = random.choice([0, 1, 200, 800])
                server.post(question, leave_after=leave_after)
                tally.note("left")
                continue
            status, answer = server.post(question)
        except (OSError, http.client.HTTPException) as error:
            tally.note(type(error).__name__)
            continue
        if status == 200:
            outcome = "right" if question.is_right(answer, right_answer) else "wrong"
            usage = answer["usage"]
            n_tokens = usage.get("completion_tokens", usage.get("output_tokens", 0))
            tally.note(outcome, time.monotonic() - began, n_tokens)
        else:
            tally.note(str(status))
            time.sleep(random.random())


def engine_pid(pid: int) -> int | None:
    """The server's engine process; None while there is none."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return None


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def slope_percent_per_minute(samples: list[tuple[float, float]]) -> float:
    """Growth of the second half of the samples: the first half is for warming up."""
    half = samples[len(samples) // 2 :]
    if len(half) < 2:
        return math.nan
    mean_t = sum(t for t, _ in half) / len(half)
    mean_y = sum(y for _, y in half) / len(half)
    rise = sum((t - mean_t) * (y - mean_y) for t, y in half)
    run = sum((t - mean_t) ** 2 for t, _ in half)
    return 100 * 60 * rise / run / mean_y


def watch(args: argparse.Namespace, server: Server, deadline: float) -> dict[str, Any]:
    """Sample memory, and kill the engine as often as asked."""
    began = time.monotonic()
    memory: dict[int, list[tuple[float, float]]] = {args.pid: []}
    recoveries: list[float] = []
    kills = [began + args.seconds * (i + 1) / (args.kills + 1) for i in range(args.kills)]
    while time.monotonic() < deadline:
        time.sleep(1)
        now, engine = time.monotonic(), engine_pid(args.pid)
        memory[args.pid].append((now, rss_mib(args.pid)))
        if engine is not None:
            memory.setdefault(engine, []).append((now, rss_mib(engine)))
            if kills and now > kills[0]:
                kills.pop(0)
                os.kill(engine, signal.SIGKILL)
                recoveries.append(wait_recovered(server))
    server_memory = memory.pop(args.pid)
    # of the engine that lived longest
    samples = {"server": server_memory, "engine": max(memory.values(), key=len)}
    return {
        "rss_mib": {name: round(s[-1][1], 1) for name, s in samples.items()},
        "rss_slope_percent_per_minute": {
            name: round(slope_percent_per_minute(s), 2) for name, s in samples.items()
        },
        "recoveries_s": [round(seconds, 2) for seconds in recoveries],
    }


def wait_recovered(server: Server) -> float:
    """Seconds from now until the server is well again after it was not."""
    began = time.monotonic()
    while server.get("/health")[0] == 200 and time.monotonic() - began < 5:
        time.sleep(0.01)
    while server.get("/health")[0] != 200:
        time.sleep(0.05)
    return time.monotonic() - began


def main() -> int:
    """Run the load and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--pid", type=int, required=True, help="of the server process")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--kills", type=int, default=0, help="of the engine during the load")
    args = parser.parse_args()
    server, tally = Server(args.url), Tally()
    expected = [(question, server.post(question)[1]) for question in questions()]
    deadline = time.monotonic() + args.seconds
    threads = [
        Thread(target=run_client, args=(server, expected, tally, deadline))
        for _ in range(args.clients)
    ]
    for thread in threads:
        thread.start()
    report = watch(args, server, deadline)
    for thread in threads:
        thread.join()
    time.sleep(2)
    n_busy = sum(slot["is_processing"] for slot in server.get("/slots")[1])
    latencies = sorted(tally.latencies) or [0.0]
    report |= {
        "clients": args.clients,
        "outcomes": dict(tally.outcomes),
        "tokens_per_s": round(tally.n_tokens / args.seconds, 1),
        "latency_p50_s": round(latencies[len(latencies) // 2], 2),
        "latency_p99_s": round(latencies[int(len(latencies) * 0.99)], 2),
        "slots_leaked": n_busy,
    }
    for name, value in report.items():
        print(f"{name:30} {value}")
    print(json.dumps(report))
    is_expected = {"right", "left", "429"} | ({"503"} if args.kills else set())
    return int(bool(n_busy) or not set(tally.outcomes) <= is_expected)


if __name__ == "__main__":
    sys.exit(main())
