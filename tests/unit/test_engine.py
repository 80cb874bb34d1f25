"""The engine on a tiny model: what is reused, what must not be, where answers end."""

import numpy as np
import pytest

from phi4mm import InputError, Message, Phi4MM, PromptTooLong, SamplingParams, user_message
from phi4mm.engine.context_plan import ContextPlan
from phi4mm.engine.encoding import EncoderCache
from phi4mm.prompt.message import TextPart


@pytest.fixture(scope="module")
def model(bundle_dir):
    """A model that no other module has talked to."""
    with Phi4MM(bundle_dir("tiny"), n_ctx=2048, n_threads=2, kv_type="f32") as model:
        yield model


@pytest.fixture
def picture(media_dir):
    return media_dir / "i150x333.png"


@pytest.fixture
def clip(media_dir):
    return media_dir / "a33234_16000.wav"


def answer(model, *messages, n=6):
    """(ids, last event) of a greedy answer."""
    events = list(model.generate(list(messages), SamplingParams(max_tokens=n)))
    return [id_ for event in events for id_ in event.token_ids], events[-1]


def test_a_repeated_prompt_computes_one_token(model):
    cold, _ = answer(model, user_message("The quick brown fox"))
    warm, last = answer(model, user_message("The quick brown fox"))
    assert warm == cold
    assert last.usage.n_cached == last.usage.n_prompt - 1


def test_a_follow_up_keeps_the_picture(model, picture):
    question = user_message("What is shown?", images=[picture])
    _, first = answer(model, question)
    reply = Message("assistant", (TextPart("A ripple."),))
    _, second = answer(model, question, reply, user_message("Which colour?"))
    assert first.usage.n_cached < first.usage.n_image
    assert second.usage.n_cached > second.usage.n_image
    assert second.timings.encode_s == 0


def test_an_answer_after_reuse_is_the_cold_one(model, bundle_dir, picture):
    reply = Message("assistant", (TextPart("Waves."),))
    question = user_message("What is shown?", images=[picture])
    messages = [question, reply, user_message("Describe them.")]
    answer(model, messages[0])
    warm, last = answer(model, *messages)
    assert last.usage.n_cached > 0
    with Phi4MM(bundle_dir("tiny"), n_ctx=2048, n_threads=2, kv_type="f32") as fresh:
        cold, last = answer(fresh, *messages)
    assert last.usage.n_cached == 0
    assert warm == cold


def test_nothing_is_kept_when_the_adapter_changes(model, clip):
    question = user_message("Describe the picture, please.")
    answer(model, question)
    _, heard = answer(model, user_message("Describe the picture, please.", audios=[clip]))
    assert heard.usage.n_cached == 0
    _, text = answer(model, question)
    assert text.usage.n_cached == 0


def test_a_clip_is_not_kept_when_its_projection_changes(model, clip, picture):
    answer(model, user_message(images=[picture], audios=[clip]))
    _, last = answer(model, user_message(audios=[clip]))
    assert last.usage.n_cached == 0


def test_another_picture_of_the_same_size_is_another_picture(model, picture):
    from PIL import Image, ImageOps

    answer(model, user_message("?", images=[picture]))
    inverted = ImageOps.invert(Image.open(picture).convert("RGB"))
    _, last = answer(model, user_message("?", images=[inverted]))
    assert last.usage.n_cached == 1  # <|user|>
    assert last.timings.encode_s > 0


def test_a_prompt_that_does_not_fit_is_refused_with_numbers(bundle_dir):
    with (
        Phi4MM(bundle_dir("tiny"), n_ctx=256) as small,
        pytest.raises(PromptTooLong, match="the context holds 256") as error,
    ):
        small.generate([user_message("word " * 400)])
    assert error.value.n_ctx == 256
    assert error.value.n_tokens > 256


def test_an_answer_ends_when_the_context_is_full(bundle_dir):
    with Phi4MM(bundle_dir("tiny"), n_ctx=64, n_threads=2) as small:
        events = list(small.generate_raw("hello" * 5))
    last = events[-1]
    if last.finish_reason == "length":
        assert last.usage.n_prompt + last.usage.n_generated == 64 + 1
    assert all(event.finish_reason is None for event in events[:-1])


def test_closing_the_answer_leaves_the_model_ready(model):
    events = model.generate([user_message("Hello")])
    next(events)
    events.close()
    assert answer(model, user_message("Hello"))[0]


def test_logits_do_not_depend_on_what_came_before(model):
    first = model.logits("<|user|>one two three<|end|>")
    model.logits("<|user|>one two four<|end|>", adapter="speech")
    np.testing.assert_array_equal(model.logits("<|user|>one two three<|end|>"), first)


def test_an_adapter_changes_the_logits(model):
    prompt = "<|user|>one two three<|end|>"
    plain, vision, speech = (model.logits(prompt, adapter=a) for a in (None, "vision", "speech"))
    assert np.abs(plain - vision).max() > 1e-2
    assert np.abs(vision - speech).max() > 1e-2
    np.testing.assert_array_equal(model.logits(prompt), plain)


@pytest.mark.parametrize(
    ("prompt", "n_images", "message"),
    [
        ("<|image_1|>", 0, "marks 1 image place"),
        ("x", 1, "marks 0 image place"),
        ("<|image_1|><|image_2|>", 1, "marks 2 image place"),
        ("", 0, "the prompt is empty"),
    ],
)
def test_markers_and_pictures_must_match(model, picture, prompt, n_images, message):
    with pytest.raises(InputError, match=message):
        model.logits(prompt, images=[picture] * n_images)


def test_the_encoder_cache_drops_the_least_recently_used():
    rows = np.zeros((10, 10), np.float32)  # 400 bytes
    cache = EncoderCache(1000)
    for name in "ab":
        cache.put((name, None), rows)
    assert cache.get(("a", None)) is not None
    cache.put(("c", None), rows)
    assert cache.get(("b", None)) is None
    assert cache.get(("a", None)) is not None


def test_the_encoder_cache_ignores_what_alone_exceeds_it():
    cache = EncoderCache(100)
    cache.put(("a", None), np.zeros((10, 10), np.float32))
    assert cache.get(("a", None)) is None


def test_a_sequence_is_long_just_beyond_the_original_context():
    plan = ContextPlan(n_ctx=2048, n_short=1024, n_long=2048)
    assert not plan.is_long(1024)
    assert plan.is_long(1025)
