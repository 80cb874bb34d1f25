"""Makes speech with Debian's synthesisers: espeak-ng, flite, festival.

Clips are cached in numbered shards below the run directory; a shard depends on its number alone.
An *item* clip says one word or digit, a *phrase* clip says several, a *question* clip asks about a
picture.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
from numpy.typing import NDArray

from .geometry import RATE
from .vocabulary import Split, split_of, vocabulary

Kind = Literal["item", "phrase", "question"]
Wave = NDArray[np.float32]
CLIPS_PER_SHARD = 400
PAUSED = 0.15  # share of clips with a pause after every word
LONGEST_S = 6.0
_SILENCE = 0.006


@dataclass(frozen=True)
class Order:
    """What one clip is to say, and how."""

    text: str
    voice: str
    speed: float
    pause: bool


def spoken_form(question: str) -> str:
    """A question as it is spoken and transcribed: lower case, no punctuation."""
    return question.lower().rstrip("?.")


@lru_cache(maxsize=16)
def questions(form: str | None = None) -> list[str]:
    """The questions about pictures as they are spoken, of one form or of all."""
    v = vocabulary()
    forms = v["picture_questions"] if form is None else {form: v["picture_questions"][form]}
    asked = {
        spoken_form(text.format(shape=shape, colour=colour, item=item))
        for text in forms.values()
        for shape in v["shapes"]
        for colour in v["colours"]
        for item in v["print_words"]
    }
    return sorted(asked)


@lru_cache(maxsize=1)
def unit_words() -> list[str]:
    """Every word that can be said, digits as digits."""
    v = vocabulary()
    spoken = {word for text in questions() for word in text.split()}
    return sorted(spoken | set(v["spoken_words"])) + [str(d) for d in range(10)]


def units(text: str) -> list[str]:
    """A transcript as spoken units: words, and single digits."""
    return [u for word in text.split() for u in (word if word.isdigit() else [word])]


def _digits(rng: random.Random, n: int) -> str:
    return "".join(str(rng.randint(0, 9)) for _ in range(n))


def _phrase(rng: random.Random) -> str:
    words = vocabulary()["spoken_words"]
    kind = rng.random()
    if kind < 0.25:
        return _digits(rng, rng.randint(2, 6))
    said = [rng.choice(words) for _ in range(rng.randint(2, 6))]
    if kind < 0.55:
        said[rng.randrange(len(said))] = _digits(rng, rng.randint(1, 3))
    return " ".join(said)


def transcript(rng: random.Random, split: Split, kind: Kind) -> str:
    """What a clip says. Phrases are held out by their wording; the others by their voices alone."""
    if kind == "item":
        return rng.choice(unit_words())
    if kind == "question":
        # The price question has a form for every printed word: drawn by form, not by text.
        forms = list(vocabulary()["picture_questions"])
        return rng.choice(questions(rng.choice(forms)))
    while True:
        text = _phrase(rng)
        if split_of(text) == split:
            return text


def spelled(text: str, pause: bool) -> str:
    """The text for the synthesiser: digits as words, commas where pauses are wanted."""
    names = vocabulary()["digits"]
    parts = [" ".join(names[int(d)] for d in w) if w.isdigit() else w for w in text.split()]
    return (", " if pause else " ").join(parts)


def _read(path: Path) -> Wave:
    # Here, so that what is said can be known without the package.
    from scipy.signal import resample_poly

    wave, rate = soundfile.read(path, dtype="float32")
    return wave if rate == RATE else resample_poly(wave, RATE, rate).astype(np.float32)


def _espeak(orders: Sequence[Order], folder: Path) -> None:
    for number, order in enumerate(orders):
        voice, speed = order.voice.split(":")[1], str(round(160 * order.speed))
        text = spelled(order.text, order.pause)
        path = str(folder / f"{number}.wav")
        subprocess.run(["espeak-ng", "-v", voice, "-s", speed, "-w", path, text], check=True)


def _flite(orders: Sequence[Order], folder: Path) -> None:
    for number, order in enumerate(orders):
        voice, stretch = order.voice.split(":")[1], f"duration_stretch={1 / order.speed:.3f}"
        text = spelled(order.text, order.pause)
        path = str(folder / f"{number}.wav")
        command = ["flite", "-voice", voice, "--setf", stretch, "-t", text, "-o", path]
        subprocess.run(command, check=True)


def _festival(orders: Sequence[Order], folder: Path) -> None:
    lines = []
    for number, order in enumerate(orders):
        lines += [
            f"(voice_{order.voice.split(':')[1]})",
            f"(Parameter.set 'Duration_Stretch {1 / order.speed:.3f})",
            f'(utt.save.wave (SynthText "{spelled(order.text, order.pause)}")'
            f' "{folder / str(number)}.wav")',
        ]
    script = folder / "script.scm"
    # SynthText would play the sound; a stand-in that only synthesises.
    stand_in = "(define (SynthText text) (utt.synth (eval (list 'Utterance 'Text text))))"
    script.write_text("\n".join([stand_in, *lines]), encoding="utf-8")
    subprocess.run(["festival", "-b", str(script)], check=True, capture_output=True)


ENGINES = {"espeak": _espeak, "flite": _flite, "festival": _festival}


def say(orders: Sequence[Order]) -> list[Wave]:
    """Synthesise orders of one engine; silence at the ends cut, peak at 0.8."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ENGINES[orders[0].voice.split(":")[0]](orders, folder)
        return [_trim(_read(folder / f"{n}.wav")) for n in range(len(orders))]


def _trim(wave: Wave) -> Wave:
    loud = np.flatnonzero(np.abs(wave) > _SILENCE)
    assert len(loud), "a synthesiser gave silence"
    cut = wave[max(0, loud[0] - 300) : loud[-1] + 600]
    return cut * (0.8 / np.abs(cut).max())


def draw_voice(rng: random.Random, split: Split) -> tuple[str, float]:
    """A voice and a speed of the split; synthesisers come with fixed weights."""
    rule = vocabulary()["split"]
    by_engine: dict[str, list[str]] = {}
    for voice in rule["voices"][split]:
        by_engine.setdefault(voice.split(":")[0], []).append(voice)
    engines = [e for e in ("espeak", "flite", "festival") if e in by_engine]
    weights = [{"espeak": 0.6, "flite": 0.22, "festival": 0.18}[e] for e in engines]
    voice = rng.choice(by_engine[rng.choices(engines, weights)[0]])
    return voice, rng.choice(rule["speeds"][split])


def _order(rng: random.Random, split: Split, kind: Kind) -> Order:
    voice, speed = draw_voice(rng, split)
    return Order(transcript(rng, split, kind), voice, speed, rng.random() < PAUSED)


def make_shard(path: Path, split: Split, kind: Kind, number: int) -> None:
    """Synthesise one shard and write it atomically."""
    rng = random.Random(f"{split} {kind} {number}")
    orders = [_order(rng, split, kind) for _ in range(CLIPS_PER_SHARD)]
    clips: list[tuple[Order, Wave]] = []
    for engine in ENGINES:
        own = [order for order in orders if order.voice.startswith(engine)]
        if own:
            clips += zip(own, say(own), strict=True)
    clips = [(order, wave) for order, wave in clips if len(wave) < LONGEST_S * RATE]
    rng.shuffle(clips)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        wave=np.concatenate([np.round(wave * 32767).astype(np.int16) for _, wave in clips]),
        length=np.array([len(wave) for _, wave in clips]),
        text=np.array([order.text for order, _ in clips]),
        voice=np.array([order.voice for order, _ in clips]),
    )
    partial.rename(path)


def shard_path(run_dir: Path, split: Split, kind: Kind, number: int) -> Path:
    """Where a shard is cached."""
    return run_dir / "clips" / f"{split}-{kind}-{number:03d}.npz"


PLAN: dict[tuple[Split, Kind], int] = {
    ("dev", "item"): 1,
    ("dev", "phrase"): 1,
    ("dev", "question"): 1,
    ("train", "item"): 16,
    ("train", "phrase"): 22,
    ("train", "question"): 8,
    ("test", "phrase"): 2,
    ("test", "question"): 2,
}


def missing_shards(run_dir: Path) -> list[tuple[Split, Kind, int]]:
    """Shards of the plan that are not in the cache."""
    shards = [(split, kind, n) for (split, kind), count in PLAN.items() for n in range(count)]
    return [shard for shard in shards if not shard_path(run_dir, *shard).exists()]


def is_synthesised(run_dir: Path) -> bool:
    """Whether the cache holds every shard of the plan."""
    return not missing_shards(run_dir)


def synthesise(run_dir: Path) -> None:
    """Make the shards that are missing."""
    for split, kind, number in missing_shards(run_dir):
        path = shard_path(run_dir, split, kind, number)
        make_shard(path, split, kind, number)
        print(json.dumps({"speech": path.name}), flush=True)
