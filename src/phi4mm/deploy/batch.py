"""Many pictures or clips, one answer each, on all workers of a Ray cluster.

An answer is a file that appears when it is whole, so what is there need not be done again.
Whoever runs this and all workers see inputs and outputs under the same paths.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from phi4mm.api import Phi4MM
from phi4mm.engine.event import Event
from phi4mm.engine.parameters import EngineParams, SamplingParams
from phi4mm.errors import InputError, Phi4MMError
from phi4mm.measurement.optional_package import import_optional
from phi4mm.measurement.staged_file import staged_file
from phi4mm.media.sniff import HEAD_BYTES, media_kind
from phi4mm.prompt.message import Message, user_message
from phi4mm.server.settings import BundlePaths
from phi4mm.transcribe.formats import JsonFormat
from phi4mm.transcribe.heard import Heard
from phi4mm.transcribe.task import TRANSCRIBE
from phi4mm.transcribe.transcriber import Transcriber

SUFFIX = ".json"
# A file that kills its worker is tried once more, in case something else killed it.
_N_RETRIES = 1
_LOST = "its worker died twice"


@dataclass(frozen=True, slots=True)
class Item:
    """One file.

    Attributes:
        source: the picture or clip.
        output: the file for its answer.
    """

    source: Path
    output: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a file.

    Attributes:
        source: the picture or clip.
        seconds: that it took.
        error: why there is no answer; None where there is one.
    """

    source: str
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about every file.

    Attributes:
        bundle: the model.
        engine: how each worker runs it.
        sampling: how it answers.
        prompt: the words that go with the file; None transcribes clips.
    """

    bundle: BundlePaths
    engine: EngineParams
    sampling: SamplingParams
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Workers:
    """How many, and what each may use."""

    n: int = 1
    n_cpus: float = 1.0
    n_gpus: float = 0.0


def plan_items(inputs: Sequence[Path], folder: Path) -> list[Item]:
    """The files, and those below the folders, with the places of their answers.

    In a folder, whatever is neither a picture nor sound by its first bytes is passed over.

    Raises:
        InputError: there is nothing to do, or two answers would be one file.
    """
    items: dict[Path, Item] = {}
    for given in inputs:
        for source, relative in _files(given):
            item = Item(source.absolute(), folder.absolute() / f"{relative}{SUFFIX}")
            if (other := items.setdefault(item.output, item)) != item:
                raise InputError(
                    f"{other.source} and {source} would both be answered in {item.output}: "
                    "rename one, or use two output folders"
                )
    if not items:
        raise InputError(f"{', '.join(map(str, inputs))}: no pictures and no sound files there")
    return list(items.values())


def _files(given: Path) -> Iterator[tuple[Path, Path]]:
    """Each file with its path below the output folder."""
    if not given.is_dir():
        yield given, Path(given.name)
        return
    for path in sorted(given.rglob("*")):
        if path.is_file() and _kind(path) is not None:
            yield path, path.relative_to(given)


def _kind(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return media_kind(stream.read(HEAD_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


class Worker:
    """A loaded model that answers one file after the other."""

    def __init__(self, question: Question) -> None:
        engine = question.engine
        if engine.n_threads is None:
            engine = replace(engine, n_threads=_assigned_cpus())
        self._question = question
        self._model = Phi4MM(
            question.bundle.open(),
            n_ctx=engine.n_ctx,
            n_threads=engine.n_threads,
            offload=engine.offload,
            kv_type=(engine.type_k, engine.type_v),
            flash_attention=engine.flash_attention,
            encoder_cache_bytes=0,  # no file comes twice
        )
        self._transcriber = Transcriber(self._events, TRANSCRIBE)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Answer one file; the row that comes back is an ``Outcome``."""
        began, error = time.perf_counter(), None
        try:
            self.answer(Item(Path(row["source"]), Path(row["output"])))
        except Phi4MMError as problem:
            error = str(problem)
        return asdict(Outcome(row["source"], time.perf_counter() - began, error))

    def answer(self, item: Item) -> None:
        """Write the answer to one file.

        Raises:
            Phi4MMError: there is none.
        """
        kind, prompt = _kind(item.source), self._question.prompt
        if kind == "audio" and prompt is None:
            text = self._transcript(item.source)
        elif prompt is None:
            raise InputError(f"{item.source}: is no recording to transcribe: give a prompt (-p)")
        else:
            text = self._reply(item.source, kind, prompt)
        item.output.parent.mkdir(parents=True, exist_ok=True)
        with staged_file(item.output) as stream:
            stream.write(text.encode())

    def _transcript(self, source: Path) -> str:
        writer = JsonFormat()
        with self._model.open_audio(source) as audio:
            heard = Heard(audio)
            with closing(self._transcriber.segments(heard.audio)) as segments:
                text = writer.begin() + "".join(map(writer.add, segments))
        return text + writer.end(str(source), TRANSCRIBE.name, heard.seconds)

    def _events(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> Generator[Event, None, None]:
        yield from self._model.generate(messages, sampling)

    def _reply(self, source: Path, kind: str | None, prompt: str) -> str:
        media = (source,)
        question = (
            user_message(prompt, audios=media)
            if kind == "audio"
            else user_message(prompt, images=media)
        )
        events = list(self._model.generate([question], self._question.sampling))
        last = events[-1]
        answer = {
            "file": str(source),
            "prompt": prompt,
            "text": "".join(event.text for event in events),
            "finish_reason": last.finish_reason,
            "usage": asdict(last.usage),
        }
        return json.dumps(answer, ensure_ascii=False) + "\n"


def _assigned_cpus() -> int:
    """Cores that Ray has given to this worker."""
    ray = import_optional("ray", "ray")
    assigned = ray.get_runtime_context().get_assigned_resources()
    return max(1, int(assigned.get("CPU", 1)))


def run_batch(
    items: Sequence[Item],
    question: Question,
    workers: Workers,
    report: Callable[[Outcome], None],
) -> list[Outcome]:
    """Answer all items on the cluster this process is connected to.

    Args:
        items: what to do, each once.
        question: what is asked.
        workers: how many, and how large.
        report: told about every file that has an answer or an error.

    Returns:
        Those without an answer.

    Raises:
        InputError: Ray is not installed.
    """
    data = import_optional("ray.data", "ray")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1  # a row to a block: the others go on
    rows = [{"source": str(item.source), "output": str(item.output)} for item in items]
    outcomes = data.from_items(rows, override_num_blocks=len(rows)).map(
        Worker,
        fn_constructor_args=(question,),
        compute=data.ActorPoolStrategy(min_size=1, max_size=min(workers.n, len(rows))),
        num_cpus=workers.n_cpus,
        num_gpus=workers.n_gpus or None,
        max_task_retries=_N_RETRIES,
    )
    lost = {str(item.source) for item in items}
    failed = []
    for row in outcomes.iter_rows():
        outcome = Outcome(**row)
        lost.discard(outcome.source)
        report(outcome)
        if outcome.error is not None:
            failed.append(outcome)
    return failed + [Outcome(source, 0.0, f"{source}: {_LOST}") for source in sorted(lost)]
