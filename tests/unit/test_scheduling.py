"""Several requests at once: answers as if alone, places freed, nobody held up or forgotten."""

from contextlib import contextmanager

import pytest

from phi4mm import InputError, SamplingParams, user_message
from phi4mm.engine.chunk_size import ChunkSize
from phi4mm.engine.loading import loaded_engine
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import Overloaded
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.llama import Context
from phi4mm.prompt.chunk import PromptBuilder
from phi4mm.prompt.tokenizer import Tokenizer

GREEDY = SamplingParams(max_tokens=8)
CLIP = "a33234_16000.wav"


@contextmanager
def opened(folder, **settings):
    """(engine, prompt builder) on a bundle."""
    defaults = {"n_ctx": 2048, "n_threads": 1, "type_k": "f32", "type_v": "f32"}
    with Bundle.open(folder) as bundle:
        tokenizer = Tokenizer(bundle.decoder.file.metadata)
        with loaded_engine(bundle, EngineParams(**defaults | settings), tokenizer) as engine:
            yield engine, PromptBuilder(bundle, tokenizer)


@pytest.fixture(scope="module")
def shared(bundle_dir):
    with opened(bundle_dir("tiny"), n_slots=4, max_waiting=8) as pair:
        yield pair


def drain(engine, ids):
    """Step until all requests have ended; their events."""
    events = {id_: [] for id_ in ids}
    while any(not e or e[-1].finish_reason is None for e in events.values()):
        for id_, event in engine.step():
            events[id_].append(event)
    return events


def tokens(events):
    return [id_ for event in events for id_ in event.token_ids]


def mixed_prompts(prompts, media_dir):
    """Fifty requests of every kind, some with a beginning in common."""
    picture, clip = media_dir / "i150x333.png", media_dir / "a33234_16000.wav"
    long_text = "the quick brown fox jumps over the lazy dog " * 12
    kinds = [
        ("Hello", [], []),
        ("What is shown?", [picture], []),
        (long_text, [], []),
        ("What is said?", [], [clip]),
        ("And both?", [picture], [clip]),
    ]
    return [
        prompts.chat([user_message(f"{text} {i}", images=images, audios=audios)])
        for i in range(10)
        for text, images, audios in kinds
    ]


@pytest.mark.slow
def test_answers_do_not_depend_on_neighbours(bundle_dir, media_dir):
    sampling = SamplingParams(max_tokens=5, top_logprobs=5)
    with opened(bundle_dir("tiny"), n_slots=8) as (engine, prompts):
        asked = mixed_prompts(prompts, media_dir)
        together = drain(engine, [engine.submit(prompt, sampling) for prompt in asked])
    assert sum(events[-1].usage.n_cached > 0 for events in together.values()) > 10
    for prompt, events in zip(asked, together.values(), strict=True):
        with opened(bundle_dir("tiny")) as (cold, _):
            alone = list(cold.generate(prompt, sampling))
        for ours, theirs in zip(events, alone, strict=False):
            (our,), (their,) = ours.logprobs, theirs.logprobs
            assert dict(our.top) == pytest.approx(dict(their.top), abs=1e-3)
            if their.top[0][1] - their.top[1][1] < 1e-2:
                break
            assert ours.token_ids == theirs.token_ids


def test_a_request_that_outgrows_the_original_context_among_others(shared, bundle_dir):
    engine, prompts = shared
    prompt = prompts.raw("<|user|>" + "the quick brown fox " * 113)
    assert 1000 < prompt.n_tokens < 1024
    n_left = 1024 - prompt.n_tokens
    sampling = SamplingParams(max_tokens=n_left + 6)
    crossing = engine.submit(prompt, sampling)
    others = [engine.submit(prompts.raw(f"<|user|>{word}"), GREEDY) for word in "abc"]
    events = drain(engine, [crossing, *others])
    with opened(bundle_dir("tiny")) as (alone, _):
        expected = list(alone.generate(prompt, sampling))
    assert tokens(events[crossing]) == tokens(expected)
    if len(expected) == n_left + 6:
        assert events[crossing][-1].usage.n_refilled > 1000
    assert engine.n_running == engine.n_waiting == 0


def test_cancelling_frees_the_slot_for_the_next_in_line(shared):
    engine, prompts = shared
    endless = SamplingParams()
    prompt = prompts.raw("<|user|>Hello")
    ids = [engine.submit(prompt, endless) for _ in range(5)]
    engine.step()
    assert (engine.n_running, engine.n_waiting) == (4, 1)
    engine.cancel(ids[0])
    engine.step()
    assert (engine.n_running, engine.n_waiting) == (4, 0)
    for id_ in ids:
        engine.cancel(id_)
    assert (engine.n_running, engine.n_waiting) == (0, 0)
    assert engine.step() == []


def test_a_full_queue_refuses(shared):
    engine, prompts = shared
    prompt = prompts.raw("<|user|>Hello")
    ids = [engine.submit(prompt, GREEDY) for _ in range(12)]
    with pytest.raises(Overloaded, match="8 requests are waiting"):
        engine.submit(prompt, GREEDY)
    assert len(drain(engine, ids)) == 12


def test_two_requests_for_a_new_picture_encode_it_once(bundle_dir, media_dir, monkeypatch):
    from phi4mm.encoders.siglip import VisionEncoder

    with opened(bundle_dir("tiny"), n_slots=2) as (engine, prompts):
        crops = []
        encode_crop = VisionEncoder._encode_crop
        monkeypatch.setattr(
            VisionEncoder,
            "_encode_crop",
            lambda self, crop, *rest: crops.append(1) or encode_crop(self, crop, *rest),
        )
        ids = [
            engine.submit(
                prompts.chat([user_message(text, images=[media_dir / "i150x333.png"])]), GREEDY
            )
            for text in ("One?", "Two?")
        ]
        drain(engine, ids)
        n_crops = 1 + prompts.picture(media_dir / "i150x333.png").plan.n_crops
        assert len(crops) == n_crops


def test_cancelling_while_a_picture_is_encoded_lets_the_other_request_encode_it(
    bundle_dir, media_dir
):
    with opened(bundle_dir("tiny"), n_slots=2) as (engine, prompts):
        prompt = prompts.chat([user_message("?", images=[media_dir / "i150x333.png"])])
        first, second = (engine.submit(prompt, GREEDY) for _ in range(2))
        for _ in range(4):
            engine.step()
        engine.cancel(first)
        assert drain(engine, [second])[second][-1].timings.encode_s > 0


def test_media_that_are_asked_about_once_take_no_place_in_the_cache(bundle_dir, media_dir):
    with opened(bundle_dir("tiny")) as (engine, prompts):
        prompt = prompts.chat([user_message(audios=[media_dir / "a33234_16000.wav"])])
        other = prompts.raw("<|user|>something else")
        for asked, lookups in (
            (prompt.asked_once(), (0, 1)),
            (prompt, (0, 2)),
            (prompt.asked_once(), (1, 2)),
        ):
            # the other one takes the slot, so that the clip is looked for again
            for request in (asked, other):
                drain(engine, [engine.submit(request, GREEDY)])
            assert engine.encoder_lookups == lookups


def test_every_adapter_has_its_turn_in_every_step(shared, media_dir):
    engine, prompts = shared
    picture, clip = media_dir / "i150x333.png", media_dir / "a33234_16000.wav"
    # a stop token would end an answer before the others begin
    sampling = SamplingParams(logit_bias=tuple((id_, -100.0) for id_ in engine._tokenizer.stop_ids))
    ids = [
        engine.submit(prompts.chat([user_message("?", images=images, audios=audios)]), sampling)
        for images, audios in ([[], []], [[picture], []], [[], [clip]], [[picture], [clip]])
    ]
    begun = set()
    while begun != set(ids):
        begun |= {id_ for id_, _ in engine.step()}
    for _ in range(5):
        assert sorted(id_ for id_, _ in engine.step()) == ids
    for id_ in ids:
        engine.cancel(id_)


def test_adapters_change_once_less_in_a_step_than_there_are(bundle_dir, media_dir, monkeypatch):
    switches, set_adapters = [], Context.set_adapters
    monkeypatch.setattr(
        Context, "set_adapters", lambda self, chosen: switches.append(set_adapters(self, chosen))
    )
    with opened(bundle_dir("tiny"), n_slots=3) as (engine, prompts):
        media = ({}, {"images": [media_dir / "i150x333.png"]}, {"audios": [media_dir / CLIP]})
        ids = [
            engine.submit(prompts.chat([user_message("Hi", **some)]), SamplingParams())
            for some in media
        ]
        seen = set()
        while seen != set(ids):
            seen |= {id_ for id_, _ in engine.step()}
        switches.clear()
        for _ in range(5):
            assert {id_ for id_, _ in engine.step()} == set(ids)
    assert len(switches) == 5 * 2


def test_a_long_prompt_does_not_hold_up_the_others(bundle_dir):
    with opened(bundle_dir("tiny"), n_slots=2) as (engine, prompts):
        engine._prefill._chunk_size.note = lambda n_tokens, seconds: None  # stay at the first size
        quick = engine.submit(prompts.raw("<|user|>Hello"), SamplingParams())
        slow = engine.submit(prompts.raw("<|user|>" + "word " * 400), GREEDY)
        n_events = 0
        for _ in range(10):
            ids = [id_ for id_, _ in engine.step()]
            assert slow not in ids
            n_events += quick in ids
        assert n_events >= 9


def test_a_busy_slots_beginning_is_copied(bundle_dir):
    with opened(bundle_dir("tiny"), n_slots=2) as (engine, prompts):
        system = "<|system|>" + "be brief and kind " * 20 + "<|end|>"
        first = engine.submit(prompts.raw(system + "<|user|>One<|end|><|assistant|>"), GREEDY)
        while not engine.step():
            pass
        prompt = prompts.raw(system + "<|user|>Two<|end|><|assistant|>")
        second = engine.submit(prompt, GREEDY)
        events = drain(engine, [first, second])
        assert events[second][-1].usage.n_cached > 60
    with opened(bundle_dir("tiny")) as (alone, _):
        assert tokens(events[second]) == tokens(alone.generate(prompt, GREEDY))


def test_answers_iterated_in_turn_do_not_disturb_each_other(bundle_dir):
    with opened(bundle_dir("tiny")) as (engine, prompts):
        asked = [prompts.raw("<|user|>Hello"), prompts.raw("<|user|>Good bye")]
        expected = [tokens(engine.generate(prompt, GREEDY)) for prompt in asked]
        answers = [engine.generate(prompt, GREEDY) for prompt in asked]
        turns = list(zip(*answers, strict=False))
        for i, ids in enumerate(expected):
            assert tokens(turn[i] for turn in turns) == ids[: len(turns)]


def test_a_bias_beyond_the_vocabulary_is_refused_at_once(shared):
    engine, prompts = shared
    sampling = SamplingParams(logit_bias=((10**6, 1.0),))
    with pytest.raises(InputError, match="logit_bias names token 1000000"):
        engine.submit(prompts.raw("<|user|>Hello"), sampling)
    assert engine.n_running == 0


def test_a_stop_string_ends_the_answer_before_it(shared):
    engine, prompts = shared
    prompt = prompts.raw("<|user|>Hello")
    whole = "".join(event.text for event in engine.generate(prompt, GREEDY))
    stop = whole[len(whole) // 2 :][:2]
    events = list(engine.generate(prompt, SamplingParams(max_tokens=8, stop=(stop,))))
    assert "".join(event.text for event in events) == whole[: whole.index(stop)]
    assert events[-1].finish_reason == "stop"


def test_the_chunk_size_follows_the_speed():
    size = ChunkSize(512, is_shared=True)
    size.note(size.n_tokens, 0.01)
    assert size.n_tokens == 64
    size.note(64, 4.0)
    assert size.n_tokens == 16
    size.note(3, 0.001)
    assert size.n_tokens == 16
    assert ChunkSize(512, is_shared=False).n_tokens == 512
