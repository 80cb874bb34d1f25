"""From pieces to timed text: nothing lost or doubled at a seam, guards, formats, jobs."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from phi4mm.engine.event import Event, FinishReason, Timings, Usage
from phi4mm.engine.parameters import SamplingParams
from phi4mm.errors import InputError
from phi4mm.media.audio import AudioStream
from phi4mm.prompt.message import AudioPart, Message, TextPart
from phi4mm.transcribe.formats import FORMATS
from phi4mm.transcribe.guard import RepeatWatch, is_refusal, strip_lead_in
from phi4mm.transcribe.job import plan_jobs
from phi4mm.transcribe.seam import join_at_seam
from phi4mm.transcribe.segment import Segment, join_texts
from phi4mm.transcribe.subtitle import clock, cues
from phi4mm.transcribe.task import TRANSCRIBE, translate_to
from phi4mm.transcribe.transcriber import Transcriber

RATE = 16000
WORD_S, GAP_S = 0.25, 0.06
WORDS = tuple(f"w{n}" for n in range(40))
Samples = npt.NDArray[np.float32]


def spoken(words: Sequence[str]) -> Samples:
    """Each word a tone of its own pitch, with gaps too short for a pause."""
    t = np.arange(round(RATE * WORD_S)) / RATE
    fade = np.minimum(1, 40 * np.minimum(t, WORD_S - t))
    gap = np.zeros(round(RATE * GAP_S))
    tones = [0.3 * fade * np.sin(2 * np.pi * (400 + 80 * WORDS.index(w)) * t) for w in words]
    return np.concatenate([part for tone in tones for part in (tone, gap)]).astype(np.float32)


def heard(samples: Samples) -> list[str]:
    """The words of ``spoken`` sound; less than two thirds of a word is not understood."""
    hop = RATE // 100
    frames = samples[: len(samples) // hop * hop].reshape(-1, hop)
    tones = [_pitch(frames[max(0, n - 1) : n + 2].ravel()) for n in range(len(frames))]
    words: list[str] = []
    start = 0
    for n in range(1, len(tones) + 1):
        if n == len(tones) or tones[n] != tones[start]:
            if tones[start] is not None and n - start > 100 * WORD_S * 2 / 3:
                words.append(WORDS[tones[start]])
            start = n
    return words


def _pitch(sound: Samples) -> int | None:
    if np.abs(sound).max() < 0.02:
        return None
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(len(sound)), 4096))
    index = round((spectrum.argmax() * RATE / 4096 - 400) / 80)
    return index if 0 <= index < len(WORDS) else None


class Listener:
    """Answers pieces as ``heard`` does, word by word; notes what it was asked."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.seconds: list[float] = []

    def __call__(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> Generator[Event, None, None]:
        (message,) = messages
        audio, text = message.parts
        assert isinstance(audio, AudioPart), "media come first"
        assert isinstance(text, TextPart)
        assert isinstance(audio.source, tuple)
        samples, rate = audio.source
        self.prompts.append(text.text)
        self.seconds.append(len(samples) / rate)
        yield from events([f" {word}" for word in self.words(samples)])

    def words(self, samples: Samples) -> list[str]:
        return heard(samples)


def events(
    texts: Sequence[str], finish: FinishReason = "stop", ids: Sequence[int] | None = None
) -> Generator[Event, None, None]:
    """An answer of one token for each text."""
    usage, timings = Usage(1, 0, 0), Timings()
    for n, text in enumerate(texts):
        id_ = hash(text) if ids is None else ids[n]
        yield Event(text, (id_,), usage, timings)
    yield Event("", (-1,), usage, timings, finish)


def transcribe(generate: object, *parts: Samples) -> list[Segment]:
    audio = AudioStream("talk", RATE, None, iter(parts))
    return list(Transcriber(generate).segments(audio))  # type: ignore[arg-type]


def silence(seconds: float) -> Samples:
    return np.zeros(round(RATE * seconds), np.float32)


class TestWords:
    def test_every_word_once_and_in_order(self) -> None:
        random = np.random.default_rng(5)
        said: list[str] = []
        parts = []
        for _ in range(25):
            words = random.choice(WORDS, random.integers(2, 30)).tolist()
            said += words
            parts += [spoken(words), silence(random.uniform(0.25, 2.5))]
        segments = transcribe(Listener(), *parts)
        assert " ".join(s.text for s in segments).split() == said
        assert all(a.end_s <= b.start_s for a, b in pairwise(segments))
        assert all(s.start_s < s.end_s and s.note is None for s in segments)

    @pytest.mark.parametrize("seed", range(3))
    def test_no_word_is_lost_or_doubled_where_there_is_no_pause(self, seed: int) -> None:
        said = np.random.default_rng(seed).choice(WORDS, 250).tolist()  # 77 seconds
        listener = Listener()
        segments = transcribe(listener, spoken(said))
        assert len(segments) >= 3
        assert max(listener.seconds) < 40
        assert " ".join(s.text for s in segments).split() == said

    def test_control_without_the_seam_words_are_doubled(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = "phi4mm.transcribe.transcriber.join_at_seam"
        monkeypatch.setattr(module, lambda left, right: (left, right))
        said = np.random.default_rng(0).choice(WORDS, 250).tolist()
        segments = transcribe(Listener(), spoken(said))
        assert len(" ".join(s.text for s in segments).split()) > len(said)

    def test_the_prompt_is_the_task(self) -> None:
        listener = Listener()
        audio = AudioStream("talk", RATE, None, iter([spoken(WORDS)]))
        list(Transcriber(listener, translate_to("de")).segments(audio))
        assert set(listener.prompts) == {"Translate the audio to German."}
        assert TRANSCRIBE.prompt == "Transcribe the audio clip into text."

    def test_silence_and_noise_are_not_even_asked_about(self) -> None:
        listener = Listener()
        noise = 0.01 * np.random.default_rng(0).standard_normal(10 * RATE).astype(np.float32)
        assert transcribe(listener, silence(20), noise) == []
        assert listener.prompts == []


@pytest.mark.parametrize(
    ("left", "right", "joined"),
    [
        ("one two three", "two three four", "one two three four"),
        ("one two thr", "two three four", "one two three four"),
        ("one two three", "wo three four", "one two three four"),
        ("One, two.", "two three", "One, two. three"),
        ("one two", "three four", "one two three four"),
        ("one two thr", "no two four", "one two thr no two four"),
        ("one the", "the two", "one the two"),
        ("", "one", "one"),
        ("one", "", "one"),
        ("今日は天気", "天気がいい", "今日は天気がいい"),
        ("very very good", "very good indeed", "very very good indeed"),
    ],
)
def test_seams(left: str, right: str, joined: str) -> None:
    kept, rest = join_at_seam(left, right)
    assert join_texts([kept, rest]).split() == joined.split()


class TestRepeats:
    @pytest.mark.parametrize("period", [1, 2, 7, 20])
    def test_are_cut_to_one_copy(self, period: int) -> None:
        loop = [f" x{n}" for n in range(period)]
        texts = [" It", " began", " well", *loop * 60]

        def generate(*_: object) -> Generator[Event, None, None]:
            return events(texts, "length")

        (segment,) = transcribe(generate, spoken(WORDS[:12]))
        assert segment.note == "repetition"
        assert segment.text == "".join(texts[: 3 + period]).strip()

    @pytest.mark.parametrize("text", ["no no no no no no", "a b c " * 5, "ha " * 20])
    def test_people_repeat_themselves_too(self, text: str) -> None:
        watch = RepeatWatch()
        assert [watch.push(hash(word)) for word in text.split()] == [None] * len(text.split())

    def test_a_long_piece_is_heard_again_in_halves(self) -> None:
        class Stutterer(Listener):
            def words(self, samples: Samples) -> list[str]:
                return ["and"] * 99 if len(samples) > 10 * RATE else heard(samples)

        said = [WORDS[n * 7 % 40] for n in range(40)]  # 12.4 s
        listener = Stutterer()
        segments = transcribe(listener, spoken(said))
        assert [s.note for s in segments] == [None, None]
        assert " ".join(s.text for s in segments).split() == said

    def test_the_answer_is_not_read_on(self) -> None:
        read = []

        def generate(*_: object) -> Generator[Event, None, None]:
            for event in events([" so"] * 1000):
                read.append(event)
                yield event

        transcribe(generate, spoken(WORDS[:12]))
        assert len(read) < 40


class TestChatter:
    @pytest.mark.parametrize(
        "text",
        [
            "Here is the transcription: Ask not.",
            "Sure, here's the transcript of the audio clip: Ask not.",
            'The audio says: "Ask not."',
            "Transcript: Ask not.",
            "The transcription of the audio is: “Ask not.”",
        ],
    )
    def test_lead_ins_go(self, text: str) -> None:
        assert strip_lead_in(text) == "Ask not."

    @pytest.mark.parametrize(
        "text",
        [
            "Here is the news.",
            "The audio was bad.",
            "Sure, here it is.",
            "This is a recording of my voice.",
            "The speaker says no.",
        ],
    )
    def test_speech_stays(self, text: str) -> None:
        assert strip_lead_in(text) == text
        assert not is_refusal(text)

    @pytest.mark.parametrize(
        "text",
        [
            "I'm sorry, but I can't listen to audio.",
            "Sorry, I am unable to transcribe the audio clip.",
            "As an AI, I cannot process audio files.",
        ],
    )
    def test_refusals_are_noted(self, text: str) -> None:
        (segment,) = transcribe(lambda *_: events([text]), spoken(WORDS[:12]))
        assert (segment.text, segment.note) == ("", "refusal")

    @pytest.mark.parametrize("text", ["I'm sorry, I'm late.", "Sorry, I cannot come tomorrow."])
    def test_apologies_are_speech(self, text: str) -> None:
        assert not is_refusal(text)

    def test_an_answer_that_is_too_long_is_noted(self) -> None:
        asked: list[SamplingParams] = []

        def generate(_: object, sampling: SamplingParams) -> Generator[Event, None, None]:
            asked.append(sampling)
            return events([" one", " two"], "length")

        (segment,) = transcribe(generate, spoken(WORDS[:12]))
        assert (segment.text, segment.note) == ("one two", "length")
        assert asked[0].max_tokens is not None
        assert 50 < asked[0].max_tokens < 200

    def test_control_characters_do_not_pass(self) -> None:
        (segment,) = transcribe(lambda *_: events([" a\x1b[2J\n b\x00"]), spoken(WORDS[:12]))
        assert segment.text == "a[2J b"


SEGMENTS = (
    Segment(0.5, 2.25, "Hello & goodbye <b> --> end"),
    Segment(2.5, 3.0, ""),
    Segment(3725.0, 3739.0, "many words " * 14, "length"),
)


def written(format_: str) -> str:
    writer = FORMATS[format_]()
    body = "".join(map(writer.add, SEGMENTS))
    return writer.begin() + body + writer.end("talk.wav", "transcribe", 3740.0)


class TestFormats:
    def test_text(self) -> None:
        assert written("text").splitlines()[0] == "Hello & goodbye <b> --> end"
        assert len(written("text").splitlines()) == 2

    def test_json(self) -> None:
        line = written("json")
        assert line.count("\n") == 1
        found = json.loads(line)
        assert found["file"] == "talk.wav"
        assert found["duration"] == 3740
        assert found["segments"][0] == {"start": 0.5, "end": 2.25, "text": SEGMENTS[0].text}
        assert found["segments"][2]["note"] == "length"
        assert found["text"].startswith("Hello & goodbye <b> --> end many words")

    def test_srt(self) -> None:
        blocks = written("srt").strip().split("\n\n")
        assert blocks[0].splitlines() == [
            "1", "00:00:00,500 --> 00:00:02,250", "Hello & goodbye <b> -> end",
        ]  # fmt: skip
        assert [block.splitlines()[0] for block in blocks] == ["1", "2", "3", "4"]
        assert blocks[1].splitlines()[1].startswith("01:02:05,000 --> ")
        assert blocks[-1].splitlines()[1].endswith("01:02:19,000")

    def test_vtt(self) -> None:
        lines = written("vtt").splitlines()
        assert lines[:3] == ["WEBVTT", "", "00:00:00.500 --> 00:00:02.250"]
        assert lines[3] == "Hello &amp; goodbye &lt;b&gt; -&gt; end"

    def test_cues_can_be_read(self) -> None:
        found = list(cues(SEGMENTS[2]))
        assert found[0].start_s == 3725
        assert found[-1].end_s == pytest.approx(3739)
        assert all(a.end_s == b.start_s for a, b in pairwise(found))
        assert all(cue.end_s - cue.start_s <= 7.5 for cue in found)
        assert all(len(cue.lines) <= 2 for cue in found)
        assert all(len(line) <= 50 for cue in found for line in cue.lines)
        assert " ".join(" ".join(cue.lines) for cue in found) == SEGMENTS[2].text.strip()

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(0, "00:00:00.000"), (59.9996, "00:01:00.000"), (36000, "10:00:00.000")],
    )
    def test_clock(self, seconds: float, text: str) -> None:
        assert clock(seconds, ".") == text

    def test_scripts_without_blanks(self) -> None:
        assert join_texts(["今日は。", "はい。", "", "ok", "then"]) == "今日は。はい。ok then"


class TestTasks:
    @pytest.mark.parametrize("language", ["de", "German", " DE "])
    def test_languages(self, language: str) -> None:
        assert translate_to(language).prompt == "Translate the audio to German."

    def test_unknown_languages_are_refused_with_a_list(self) -> None:
        with pytest.raises(InputError, match=r"'tlh': .*de \(German\)"):
            translate_to("tlh")


class TestJobs:
    def test_folders_keep_their_shape(self, tmp_path: Path) -> None:
        for name in ("b.wav", "a.MP3", "notes.txt", "deep/c.flac"):
            (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "in" / name).touch()
        jobs = plan_jobs([str(tmp_path / "in"), "x.wav", "-"], tmp_path / "out", ".srt")
        outputs = [str(job.output.relative_to(tmp_path / "out")) for job in jobs if job.output]
        assert outputs == ["a.srt", "b.srt", "deep/c.srt", "x.srt", "stdin.srt"]

    def test_finished_ones_are_known(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").touch()
        first, second = plan_jobs(["a.wav", "b.wav"], tmp_path, ".txt")
        assert first.is_done
        assert not second.is_done

    def test_two_transcripts_of_one_name_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"a\.wav and x/a\.mp3 would both be written"):
            plan_jobs(["a.wav", "x/a.mp3"], tmp_path, ".txt")

    def test_a_folder_without_sound_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="has no sound files"):
            plan_jobs([str(tmp_path)], None, ".txt")
