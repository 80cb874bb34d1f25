"""Measures a bundle against llama.cpp and torch, in turn, and how its speed scales.

    python scripts/speed.py BUNDLE -o DIR
    python scripts/speed.py BUNDLE -o DIR --torch PYTHON           # an interpreter that has torch
    python scripts/speed.py BUNDLE -o DIR --parts curves --minutes 60

Parts:

    start     importing, --help, and the first token of a warm start, ours and llama.cpp's
    decoder   prefill and decoding, ours and llama.cpp's, and ours with each adapter
    encoders  a picture of 448x448, one of 640x480, 30 s of sound: ours, ours with ggml's own
              products, and the same layers in torch, float32
    again     a second question about a picture, and a repeated system prompt, against the first
    curves    tokens per second by context, slots and adapters in flight; seconds by crops and by
              length of a clip

llama.cpp is the server of the wheel that carries libllama, with the same decoder file and threads.
What is compared takes turns within each round.  Every part makes one round at least, and others
while its share of ``--minutes`` lasts; a curve ends before a point that would exceed it.

DIR gets ``speed.json``, written anew after each part, and a plot of each curve.  The last line on
the terminal is one JSON object with the ratios of the medians.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from line_plot import write_plot

from phi4mm.bench.peak import Peak
from phi4mm.bench.work import crop_work, generation_work, prefill_work, sound_work
from phi4mm.engine.engine import AdapterChoice, Engine
from phi4mm.engine.loading import loaded_engine
from phi4mm.engine.parameters import EngineParams, SamplingParams
from phi4mm.measurement.machine import Machine
from phi4mm.measurement.workload import noise_clip, noise_picture
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.batch import Batch
from phi4mm.native.llama import Context, Model
from phi4mm.native.params import ContextParams
from phi4mm.native.product_choice import ProductChoice
from phi4mm.prompt.chunk import Prompt, PromptBuilder, TextChunk
from phi4mm.prompt.medium import Picture, Sound
from phi4mm.prompt.message import Message, TextPart, user_message
from phi4mm.prompt.tokenizer import Tokenizer

SHARES = {"start": 0.1, "decoder": 0.25, "encoders": 0.25, "again": 0.1, "curves": 0.3}
N_PROMPT, N_GENERATED = 256, 24
STOCK = (sys.executable, str(Path(__file__).with_name("stock_server.py")))
CLIP_S = 30.0
PICTURES = ((448, 448), (640, 480))
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
SLOTS = (1, 2, 4, 8, 16)
GRIDS = ((1, 1), (2, 1), (2, 2), (3, 3), (4, 4), (6, 6))
CLIPS_S = (10, 30, 60, 300, 900, 3600)

Seconds = dict[str, list[float]]


class Budget:
    """The time that a part may take."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, perhaps less than none."""
        return self._end - time.monotonic()

    def rounds(self, n_least: int = 1) -> Iterator[int]:
        """Numbers of rounds: the least, and more as long as the next one fits."""
        for number in count():
            began = time.monotonic()
            yield number
            if number + 1 >= n_least and self.left_s < time.monotonic() - began:
                return

    def grows(self, sizes: tuple[Any, ...], work: Callable[[Any], float]) -> Iterator[Any]:
        """Sizes from the smallest: the first, and others as long as the next one should fit.

        ``work`` says how much a size is, for the forecast.
        """
        speed = 0.0
        for size in sizes:
            if speed and work(size) / speed > self.left_s:
                print(
                    f"stopped before {size}: it would take {work(size) / speed:.0f} s", flush=True
                )
                return
            began = time.monotonic()
            yield size
            speed = work(size) / max(time.monotonic() - began, 1e-6)


class Stock:
    """llama.cpp's server on a decoder file, in a process of its own."""

    def __init__(self, decoder: Path, n_threads: int) -> None:
        command = [*STOCK, str(decoder), "-t", str(n_threads)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        lines = (line.strip() for line in self._process.stdout)
        address = next((line for line in lines if line.startswith("http")), None)
        if address is None:
            raise SystemExit(f"llama.cpp's server did not start: {' '.join(command)}")
        self._host = address.removeprefix("http://")

    def complete(self, ids: list[int], n_predict: int) -> dict[str, float]:
        """Answer ids with so many tokens; its own timings."""
        body = {
            "prompt": ids,
            "n_predict": n_predict,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        connection = http.client.HTTPConnection(self._host, timeout=3600)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "text/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise SystemExit(f"llama.cpp: {answer.status} {text}")
        timings: dict[str, float] = json.loads(text)["timings"]
        return timings

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Torch:
    """The encoders' layers in torch, float32, random weights, in another interpreter."""

    def __init__(self, python: str, bundle: Bundle, n_threads: int) -> None:
        sizes = {"vision": None, "audio": None}
        if bundle.vision is not None:
            sizes["vision"] = asdict(bundle.vision)
        if bundle.audio is not None:
            sizes["audio"] = asdict(bundle.audio)
        script = Path(__file__).with_name("torch_layers.py")
        self._process = subprocess.Popen(
            [python, str(script), str(n_threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask(sizes)

    def vision(self, n_crops: int) -> float:
        """Seconds of so many whole crops."""
        return self._ask({"vision": n_crops})

    def audio(self, n_frames: int) -> float:
        """Seconds of a clip of so many frames."""
        return self._ask({"audio": n_frames})

    def _ask(self, question: dict[str, Any]) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question, default=list), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("torch's process has ended")
        return float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Bench:
    """What the parts share.

    Attributes:
        bundle: the files.
        n_threads: of everything that is measured.
        torch: None where it is not wanted.
    """

    def __init__(self, bundle: Bundle, n_threads: int, torch: Torch | None) -> None:
        self.bundle = bundle
        self.n_threads = n_threads
        self.torch = torch
        self.tokenizer = Tokenizer(bundle.decoder.file.metadata)
        self.prompts = PromptBuilder(bundle, self.tokenizer)
        self._seeds = count(1)

    @contextmanager
    def engine(self, n_ctx: int, n_slots: int = 1) -> Iterator[Engine]:
        """An engine on the bundle."""
        params = EngineParams(n_ctx=n_ctx, n_threads=self.n_threads, n_slots=n_slots)
        with loaded_engine(self.bundle, params, self.tokenizer) as engine:
            yield engine

    def ids(self, n: int) -> list[int]:
        """Ids of text tokens, new ones each time."""
        random = np.random.default_rng(next(self._seeds))
        special = set(self.tokenizer.special_tokens.values())
        drawn = random.integers(0, self.tokenizer.n_vocab, 2 * n + 100).tolist()
        return [id_ for id_ in drawn if id_ not in special][:n]

    def text(self, n: int) -> Prompt:
        """A prompt of text tokens, a new one each time."""
        return Prompt((TextChunk(tuple(self.ids(n))),))

    def sampling(self, n: int) -> SamplingParams:
        """So many likeliest tokens, whatever they are."""
        never = tuple((id_, -100.0) for id_ in sorted(self.tokenizer.stop_ids))
        return SamplingParams(max_tokens=n, logit_bias=never)

    def picture(self, width: int, height: int) -> Picture:
        """A new one."""
        return self.prompts.picture(noise_picture(width, height, next(self._seeds)))

    def sound(self, seconds: float) -> Sound:
        """A new one."""
        assert self.bundle.audio is not None
        rate = self.bundle.audio.mel.sample_rates[0]
        return self.prompts.sound(noise_clip(seconds, rate, next(self._seeds)))


def timed(work: Callable[[], object]) -> float:
    """Seconds that some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def note(table: Seconds, name: str, seconds: float) -> None:
    """Keep a measurement, and show it."""
    table.setdefault(name, []).append(seconds)
    print(f"  {name}: {seconds:.4g}", flush=True)


def medians(table: Seconds) -> dict[str, float]:
    """The median of each."""
    return {name: statistics.median(values) for name, values in table.items()}


# ---- start


def measure_start(bench: Bench, budget: Budget, path: Path) -> dict[str, Any]:
    """Wall time of processes; the file is in memory."""
    phi4mm = [sys.executable, "-m", "phi4mm"]
    decoder = str(bench.bundle.decoder.path)
    run = ["run", "-m", str(path), "-t", str(bench.n_threads), "-c", "4096", "-n", "1", "-p", "Hi"]
    once = [*STOCK, decoder, "-t", str(bench.n_threads), "--once"]
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "import": [sys.executable, "-c", "import phi4mm"],
        "help": [*phi4mm, "--help"],
        "run": [*phi4mm, *run],
        "stock run": once,
    }
    table: Seconds = {}
    for number in budget.rounds(n_least=2):
        for name, command in commands.items():
            seconds = timed(lambda c=command: subprocess.run(c, check=True, capture_output=True))
            if number > 0:  # the first one reads files
                note(table, name, seconds)
        if number == 5:
            break
    found = medians(table)
    ratios = {
        "import, s": found["import"] - found["python"],
        "help, s": found["help"],
        "run less llama.cpp's, s": found["run"] - found["stock run"],
    }
    return {"seconds": table, "ratios": ratios}


# ---- decoder


def measure_decoder(bench: Bench, budget: Budget, peak: Peak) -> dict[str, Any]:
    """Tokens per second of prompt and answer."""
    table: Seconds = {}
    adapters: list[AdapterChoice] = [None, *bench.bundle.adapters]
    n_prompt = min(N_PROMPT, bench.bundle.decoder.hparams.n_ctx_orig // 2)
    with (
        bench.engine(2 * n_prompt + N_GENERATED) as engine,
        closing(Stock(bench.bundle.decoder.path, bench.n_threads)) as stock,
        native_time() as native,
    ):
        engine_answer(bench, engine, bench.text(32), None, 2)
        stock.complete(bench.ids(32), 2)
        for _ in budget.rounds():
            for adapter in adapters:
                name = adapter or "ours"
                native.clear()
                prefill, decode = engine_answer(
                    bench, engine, bench.text(n_prompt), adapter, N_GENERATED
                )
                note(table, f"{name} prefill, tok/s", n_prompt / prefill)
                note(table, f"{name} decode, tok/s", (N_GENERATED - 1) / decode)
                share = (decode - sum(native[1:])) / (N_GENERATED - 1)
                note(table, f"{name} Python's share of a token, ms", 1000 * share)
            timings = stock.complete(bench.ids(n_prompt), N_GENERATED)
            note(table, "llama.cpp prefill, tok/s", 1000 * n_prompt / timings["prompt_ms"])
            per_token = timings["predicted_ms"] / timings["predicted_n"]
            note(table, "llama.cpp decode, tok/s", 1000 / per_token)
    found = medians(table)
    ratios = {
        f"{phase} to llama.cpp's": found[f"ours {phase}, tok/s"]
        / found[f"llama.cpp {phase}, tok/s"]
        for phase in ("prefill", "decode")
    }
    for adapter in adapters[1:]:
        ratios[f"decode with {adapter} adapter to without"] = (
            found[f"{adapter} decode, tok/s"] / found["ours decode, tok/s"]
        )
    part = bench.bundle.decoder
    limits = {
        "prefill, tok/s": n_prompt / peak.least_s(prefill_work(part, None, n_prompt, 512)),
        "decode, tok/s": N_GENERATED / peak.least_s(generation_work(part, None, N_GENERATED)),
    }
    return {"measured": table, "limits": limits, "ratios": ratios}


def engine_answer(
    bench: Bench, engine: Engine, prompt: Prompt, adapter: AdapterChoice, n: int
) -> tuple[float, float]:
    """Seconds to the first token, and from there to the last, by the clock on the wall."""
    began = time.perf_counter()
    request = engine.submit(prompt, bench.sampling(n), adapter)
    times = []
    while True:
        for id_, event in engine.step():
            assert id_ == request
            times.append(time.perf_counter())
            if event.finish_reason is not None:
                return times[0] - began, times[-1] - times[0]


@contextmanager
def native_time() -> Iterator[list[float]]:
    """Seconds of each call that computes in libllama, inside the block."""
    seconds: list[float] = []
    decode = Context.decode

    def timed_decode(self: Context, batch: Batch) -> None:
        began = time.perf_counter()
        decode(self, batch)
        self.synchronize()
        seconds.append(time.perf_counter() - began)

    Context.decode = timed_decode  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Context.decode = decode  # type: ignore[method-assign]


# ---- encoders


def measure_encoders(bench: Bench, budget: Budget, peak: Peak) -> dict[str, Any]:
    """Seconds of each picture and clip."""
    table: Seconds = {}
    bundle, limits = bench.bundle, {}
    names = []
    with bench.engine(512) as engine:
        for _ in budget.rounds():
            if bundle.vision is not None:
                side = bundle.vision.image_size / 448  # of a small model pictures are smaller
                for width, height in PICTURES:
                    size = (round(width * side), round(height * side))
                    name = f"picture {size[0]}x{size[1]}"
                    names.append(name)
                    note(table, name, timed(lambda s=size: engine.encode(bench.picture(*s))))
                    plan = bench.picture(*size).plan
                    n_valid = sum(rows * cols for rows, cols in plan.crop_valid)
                    n_valid -= plan.patches_per_side**2 * (plan.n_crops == 1)
                    share = n_valid / plan.patches_per_side**2
                    assert bundle.mmproj is not None
                    crop_s = peak.least_s(crop_work(bundle.vision, bundle.mmproj.file))
                    limits[f"{name}, s"] = share * crop_s
                    with ggml_products():
                        seconds = timed(lambda s=size: engine.encode(bench.picture(*s)))
                    note(table, f"{name} with ggml's products", seconds)
                    if bench.torch is not None:
                        note(table, f"{name} in torch", bench.torch.vision(1 + plan.n_crops))
            if bundle.audio is not None:
                name = f"clip of {CLIP_S:.0f} s"
                names.append(name)
                note(table, name, timed(lambda: engine.encode(bench.sound(CLIP_S), "speech")))
                assert bundle.mmproj is not None
                work = sound_work(bundle.audio, bundle.mmproj.file, CLIP_S)
                limits[f"{name}, s"] = peak.least_s(work)
                with ggml_products():
                    seconds = timed(lambda: engine.encode(bench.sound(CLIP_S), "speech"))
                note(table, f"{name} with ggml's products", seconds)
                if bench.torch is not None:
                    note(table, f"{name} in torch", bench.torch.audio(round(CLIP_S * 100)))
    found = medians(table)
    ratios = {
        f"{other} by ours": found[other] / found[name]
        for name in dict.fromkeys(names)
        for other in (f"{name} with ggml's products", f"{name} in torch")
        if other in found
    }
    return {"seconds": table, "limits": limits, "ratios": ratios}


@contextmanager
def ggml_products() -> Iterator[None]:
    """No product by OpenBLAS inside the block."""
    prefers_blas = ProductChoice.__call__
    ProductChoice.__call__ = lambda _self, _type: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        ProductChoice.__call__ = prefers_blas  # type: ignore[method-assign]


# ---- again


def measure_again(bench: Bench, budget: Budget) -> dict[str, Any]:
    """Time to the first token of the first and the second request."""
    table: Seconds = {}
    sentence = "Answer shortly and say what you see. "
    n_ctx = min(4096, bench.bundle.decoder.hparams.n_ctx_orig)
    system = sentence * min(60, n_ctx // 2 // len(bench.tokenizer.encode(sentence)))
    with bench.engine(n_ctx) as engine:
        for number in budget.rounds():
            first_s = again(bench, engine, table, "system prompt", number, system=system)
            if bench.bundle.vision is not None:
                side = bench.bundle.vision.image_size
                image = noise_picture(side, side, 1000 + number)
                again(bench, engine, table, "picture", number, images=[image])
            if budget.left_s < first_s:
                break
    found = medians(table)
    ratios = {
        f"second to first, same {what}": found[f"{what}, second"] / found[f"{what}, first"]
        for what in ("system prompt", "picture")
        if f"{what}, first" in found
    }
    return {"seconds": table, "ratios": ratios}


def again(
    bench: Bench,
    engine: Engine,
    table: Seconds,
    what: str,
    number: int,
    *,
    system: str | None = None,
    images: tuple[Any, ...] | list[Any] = (),
) -> float:
    """Ask twice about the same; seconds of the first time."""
    start: list[Message] = []
    if system is not None:
        start = [Message("system", (TextPart(f"{number}. {system}"),))]
    for place, question in (("first", "What is it?"), ("second", "Is it large?")):
        prompt = bench.prompts.chat([*start, user_message(question, images=list(images))])
        seconds, _ = engine_answer(bench, engine, prompt, "auto", 1)
        note(table, f"{what}, {place}", seconds)
    return table[f"{what}, first"][-1]


# ---- curves


def measure_curves(bench: Bench, budget: Budget, folder: Path) -> dict[str, Any]:
    """Every curve with its share of what is left, and a plot of each."""
    curves: dict[str, Any] = {}
    makers: dict[str, Callable[[Bench, Budget], dict[str, Any]]] = {
        "slots": slot_curve,
        "adapters": adapter_curve,
        "crops": crop_curve,
        "clip": clip_curve,
        "context": context_curve,
    }
    for n_left, (name, make) in zip(range(len(makers), 0, -1), makers.items(), strict=True):
        print(f"curve: {name}", flush=True)
        curve = make(bench, Budget(budget.left_s / n_left))
        if not any(curve["lines"].values()):
            continue
        curves[name] = curve
        file = folder / f"{name}.svg"
        write_plot(file, curve["title"], curve["x"], curve["y"], curve["lines"])
    return {"curves": curves, "ratios": {}}


def slot_curve(bench: Bench, budget: Budget) -> dict[str, Any]:
    """Tokens per second of all answers together."""
    points = []
    with bench.engine(256, n_slots=max(SLOTS)) as engine:
        for n in budget.grows(SLOTS, lambda n: 4 + n):
            prompts = [bench.text(8) for _ in range(n)]
            rate = rate_together(bench, engine, [(prompt, None) for prompt in prompts])
            points.append((n, rate))
            print(f"  {n}: {rate:.4g}", flush=True)
    lines = {"all together": points, "each": [(n, rate / n) for n, rate in points]}
    return {"title": "Answers at once", "x": "answers", "y": "tok/s", "lines": lines}


def adapter_curve(bench: Bench, budget: Budget) -> dict[str, Any]:
    """Tokens per second of six answers with one, two and three adapter states."""
    states: list[AdapterChoice] = [None, *bench.bundle.adapters]
    points = []
    with bench.engine(256, n_slots=6) as engine:
        for n in budget.grows(tuple(range(1, len(states) + 1)), lambda n: n):
            asked = [(bench.text(8), states[i % n]) for i in range(6)]
            points.append((n, rate_together(bench, engine, asked)))
            print(f"  {n}: {points[-1][1]:.4g}", flush=True)
    lines = {"six answers": points}
    return {"title": "Adapters in flight", "x": "adapter states", "y": "tok/s", "lines": lines}


def rate_together(bench: Bench, engine: Engine, asked: list[tuple[Prompt, AdapterChoice]]) -> float:
    """Tokens per second while all answers are being generated."""
    n_tokens = 12
    sampling = bench.sampling(n_tokens + len(asked))
    left = {engine.submit(prompt, sampling, adapter) for prompt, adapter in asked}
    waiting, began, n = set(left), 0.0, 0
    while len(left) == len(asked):
        events = engine.step()
        if not waiting:
            n += len(events)
            seconds = time.perf_counter() - began
        waiting -= {id_ for id_, _ in events}
        if not waiting and began == 0:
            began = time.perf_counter()
        left -= {id_ for id_, event in events if event.finish_reason is not None}
    for id_ in left:
        engine.cancel(id_)
    return n / seconds


def crop_curve(bench: Bench, budget: Budget) -> dict[str, Any]:
    """Seconds of pictures of whole, different crops."""
    points = []
    if bench.bundle.vision is not None:
        h = bench.bundle.vision
        grids = tuple(grid for grid in GRIDS if grid[0] * grid[1] <= h.max_crops)
        with bench.engine(512) as engine:
            engine.encode(bench.picture(h.image_size, h.image_size))
            for cols, rows in budget.grows(grids, lambda grid: 1 + grid[0] * grid[1]):
                picture = bench.picture(cols * h.image_size, rows * h.image_size)
                seconds = timed(lambda p=picture: engine.encode(p))
                points.append((cols * rows, seconds))
                print(f"  {cols * rows}: {seconds:.4g}", flush=True)
    # of a picture of one crop the global crop is the same
    each = [(n, seconds / (n + (n > 1))) for n, seconds in points]
    lines = {"seconds": points, "for each crop that is computed": each}
    return {"title": "Crops of a picture", "x": "crops", "y": "s", "lines": lines}


def clip_curve(bench: Bench, budget: Budget) -> dict[str, Any]:
    """Seconds for a second of sound: log-mel, and all."""
    mel, whole = [], []
    if bench.bundle.audio is not None:
        with bench.engine(512) as engine:
            engine.encode(bench.sound(1), "speech")
            for length in budget.grows(CLIPS_S, float):
                sound = bench.sound(length)
                mel.append((length, timed(sound.mel) / length))
                seconds = timed(lambda s=sound: engine.encode(s, "speech"))
                whole.append((length, seconds / length))
                print(f"  {length}: {mel[-1][1]:.4g} {whole[-1][1]:.4g}", flush=True)
    lines = {"encoder with log-mel": whole, "log-mel alone": mel}
    return {"title": "Length of a clip", "x": "s of sound", "y": "s for each", "lines": lines}


def context_curve(bench: Bench, budget: Budget) -> dict[str, Any]:
    """Tokens per second of prefill up to a length, and of decoding there."""
    h, n_batch, n_decoded = bench.bundle.decoder.hparams, 512, 8
    sizes = tuple(n for n in CONTEXTS if n + n_decoded <= h.n_ctx_train)
    prefill, decode = [], []
    with Model(bench.bundle.decoder.path) as model:
        params = ContextParams(
            n_ctx_seq=sizes[-1] + n_decoded,
            n_threads=bench.n_threads,
            n_threads_batch=bench.n_threads,
            n_batch=n_batch,
            n_ubatch=n_batch,
        )
        with Context(model, params) as context:
            n = 0
            for size in budget.grows(sizes, float):
                began, added = time.perf_counter(), size - n
                for start in range(n, size, n_batch):
                    ids = np.array(bench.ids(min(n_batch, size - start)), np.int32)
                    context.decode(Batch.of_sequence(ids, start=start))
                context.synchronize()
                prefill.append((size, added / (time.perf_counter() - began)))
                began = time.perf_counter()
                for place in range(size, size + n_decoded):
                    ids = np.array(bench.ids(1), np.int32)
                    context.decode(Batch.of_sequence(ids, start=place))
                    context.synchronize()
                decode.append((size, n_decoded / (time.perf_counter() - began)))
                context.kv_remove(0, size)
                n = size
                print(f"  {size}: {prefill[-1][1]:.4g} {decode[-1][1]:.4g}", flush=True)
    lines = {"prefill up to there": prefill, "decoding there": decode}
    return {"title": "Length of the context", "x": "tokens", "y": "tok/s", "lines": lines}


# ---- all


def main() -> None:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("speed"), metavar="DIR")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, default=15.0, help="for all parts")
    parser.add_argument("--parts", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch")
    measure(parser.parse_args())


def measure(args: argparse.Namespace) -> None:
    """All parts that are wanted."""
    args.output.mkdir(parents=True, exist_ok=True)
    peak = Peak.measure()
    report: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "machine": asdict(Machine.this(args.threads)),
        "peak": {"GFLOP/s": peak.flops / 1e9, "GB/s": peak.bytes_per_s / 1e9},
    }
    ratios: dict[str, float] = {}
    with ExitStack() as stack:
        bundle = stack.enter_context(Bundle.open(args.bundle))
        torch = None
        if args.torch is not None and "encoders" in args.parts:
            torch = stack.enter_context(closing(Torch(args.torch, bundle, args.threads)))
        bench = Bench(bundle, args.threads, torch)
        parts: dict[str, Callable[[Budget], dict[str, Any]]] = {
            "start": lambda budget: measure_start(bench, budget, args.bundle),
            "decoder": lambda budget: measure_decoder(bench, budget, peak),
            "encoders": lambda budget: measure_encoders(bench, budget, peak),
            "again": lambda budget: measure_again(bench, budget),
            "curves": lambda budget: measure_curves(bench, budget, args.output),
        }
        total = sum(SHARES[name] for name in args.parts)
        for name in args.parts:
            print(name, flush=True)
            report[name] = parts[name](Budget(60 * args.minutes * SHARES[name] / total))
            ratios |= report[name]["ratios"]
            text = json.dumps(report, indent=1) + "\n"
            (args.output / "speed.json").write_text(text, encoding="utf-8")
    print(json.dumps({name: round(ratio, 4) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
