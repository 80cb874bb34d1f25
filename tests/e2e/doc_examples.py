"""The examples of the pages, and a folder with everything that they name."""

from __future__ import annotations

import re
import shlex
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile, groupby
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Example:
    """One block of a page.

    Attributes:
        page: its path below the repository.
        line: of the page, from 1.
        language: as the page says; "" without.
        text: what stands in it.
        not_run: why no test runs it; None where one does.
    """

    page: str
    line: int
    language: str
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The words of each phi4mm command in it, without the program's name."""
        if self.language not in ("", "sh", "text"):
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        commands = (c for line in lines if "phi4mm " in line for c in _commands(line))
        return [words[1:] for words in commands if words[0] == "phi4mm"]

    def makes(self, name: str) -> bool:
        """Whether it writes a file or folder of this name itself."""
        pattern = rf"(?:-o|--save-logits|>) *{re.escape(name)}(?=\s|$)"
        return re.search(pattern, self.text) is not None


def _commands(line: str) -> Iterator[list[str]]:
    """The words of each command in a line of shell, without variables set for it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for is_operator, group in groupby(lexer, lambda word: set(word) <= set("|&;<>()")):
        words = list(dropwhile(lambda word: re.match(r"\w+=", word), group))
        if not is_operator and words:
            yield words


def examples(page: str) -> list[Example]:
    """All blocks of a page, in order."""
    text = (ROOT / page).read_text()
    return [
        Example(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["text"],
            found["reason"],
        )
        for found in _FENCE.finditer(text)
    ]


def pages() -> list[str]:
    """Every page that people read."""
    return ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in _docs())]


def _docs() -> Iterator[Path]:
    return iter(sorted((ROOT / "docs").glob("*.md")))


TEXT = "The quick brown fox jumps over the lazy dog, and 12 hens look on. "
BUNDLES = ("phi4mm-q8", "phi4mm-q4", "phi4mm-bundle", "bundle", "bundle-f16", "bundle-q4")


def write_inputs(folder: Path, bundle: Path, checkpoint: Path, media: Path) -> None:
    """Everything that pages name, made of a tiny model, one picture and one clip."""
    for name in BUNDLES:
        shutil.copytree(bundle, folder / name)
    shutil.copytree(checkpoint, folder / "Phi-4-multimodal-instruct")
    shutil.copytree(checkpoint / "vision-lora", folder / "my-lora")
    (decoder,) = (p for p in bundle.glob("*.gguf") if not re.search("lora|mmproj", p.name))
    shutil.copy(decoder, folder / "some-decoder.gguf")
    picture = Image.open(media / "picture.png").convert("RGB").resize((160, 100))
    for name in ("receipt.jpg", "chart.png", "cat.png"):
        picture.save(folder / name)
    for name in ("scan.pdf", "report.pdf"):
        picture.save(folder / name, save_all=True, append_images=[picture, picture])
    samples, rate = soundfile.read(media / "clip.flac")
    for name in ("memo.wav", "question.wav", "talk.mp3"):
        soundfile.write(folder / name, samples[: 2 * rate], rate)
    soundfile.write(folder / "memo.m4a", samples[:rate], rate, format="FLAC")  # the bytes count
    soundfile.write(folder / "talk.mkv", np.zeros(rate), rate, format="FLAC")
    for name in ("text.txt", "wiki.test.raw", "calibration.txt"):
        (folder / name).write_text(TEXT * 60)
    _write_sets(folder, picture, samples[:rate], rate)


def _write_sets(folder: Path, picture: Image.Image, samples: np.ndarray, rate: int) -> None:
    """Folders of clips and pictures, and manifests of them."""
    for name in ("interviews", "talks", "LibriSpeech/test-clean/1/2"):
        (folder / name).mkdir(parents=True)
        soundfile.write(folder / name / "1-2-0000.flac", samples, rate)
    transcript = folder / "LibriSpeech/test-clean/1/2/1-2.trans.txt"
    transcript.write_text("1-2-0000 HELLO THERE\n")
    (folder / "photos").mkdir()
    picture.save(folder / "photos" / "a.png")
    line = '{"image": "chart.png", "question": "How many?", "answers": ["2"]}\n'
    (folder / "charts.jsonl").write_text(line)
    line = '{"image": "chart.png", "prompt": "How many?", "answer": "2"}\n'
    (folder / "asked.jsonl").write_text(line)


N_CTX = 4096  # what the tiny model was made for

# Programs of others, which tests do not need: they say what they were asked.
STUBS = ("pip", "hf")
# Answers that would go on for long are cut; what pages say of them does not depend on it.
SHORTER = {
    "run": {"-n": "6", "-t": "1", "-c": "2048"},
    "chat": {"-n": "6", "-t": "1", "-c": "2048"},
    "bench": {"-p": "32", "-n": "4", "-r": "1", "-t": "1", "-c": "1024"},
    "transcribe": {"-t": "1", "-c": "2048"},
    "eval": {"-t": "1"},
    "perplexity": {"-t": "1"},
    "imatrix": {"-t": "1"},
    "quantize": {"-t": "1"},
    "compare": {"-t": "1"},
}
SHIM = """\
#!{python}
import sys
from phi4mm.cli.main import main
words = sys.argv[1:]
shorter = {shorter!r}.get(words[0] if words else "", {{}})
extra = [word for flag in shorter.items() if flag[0] not in words for word in flag]
for at, word in enumerate(words):
    if word == "-c":
        words[at + 1] = str(min(int(words[at + 1]), {n_ctx}))
sys.exit(main(words + extra))
"""
PRELUDE = f"""\
from dataclasses import replace
from phi4mm import Phi4MM, SamplingParams
for name in ("generate", "_answer"):
    def shorter(self, first, sampling=None, long=getattr(Phi4MM, name)):
        return long(self, first, replace(sampling or SamplingParams(), max_tokens=6))
    setattr(Phi4MM, name, shorter)
def smaller(self, bundle, *, n_ctx={N_CTX}, large=Phi4MM.__init__, **others):
    large(self, bundle, n_ctx=min(n_ctx, {N_CTX}), **others)
Phi4MM.__init__ = smaller
"""


def write_programs(folder: Path, python: str) -> None:
    """``phi4mm`` with short answers, and stand-ins for programs of others."""
    folder.mkdir()
    programs = {name: f'#!/bin/sh\necho "{name} $*"\n' for name in STUBS}
    programs["phi4mm"] = SHIM.format(python=python, shorter=SHORTER, n_ctx=N_CTX)
    programs["ffmpeg"] = '#!/bin/sh\ncat "$2"\n'  # -i FILE
    for name, text in programs.items():
        path = folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
