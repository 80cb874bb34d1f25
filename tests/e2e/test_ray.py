"""Replicas on a local Ray cluster: the single server's tests, and what a cluster adds.

``pytest -m ray tests/e2e/test_ray.py`` where ``phi4mm[ray]`` is installed; some minutes.
"""

import json
import os
import signal
import subprocess
import sys
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import openai
import pytest
import test_server
from PIL import Image
from test_server import ask, client, clip, count, image, picture, text  # noqa: F401

pytest.importorskip("ray", reason="needs phi4mm[ray]")

from ray_server import ENVIRONMENT, RayServer

pytestmark = pytest.mark.ray

# They ask one process about itself, or start one with settings of its own.
OF_ONE_PROCESS = {
    "test_a_picture_is_encoded_once", "test_metrics_and_openapi", "test_the_log_holds_no_contents",
}  # fmt: skip


def is_shared(name, test):
    """Whether a test is about any server at all."""
    arguments = test.__code__.co_varnames[: test.__code__.co_argcount]
    return name.startswith("test_") and name not in OF_ONE_PROCESS and (
        "strict_server" not in arguments
    )  # fmt: skip


globals().update(
    {
        name: test
        for name, test in vars(test_server).items()
        if callable(test) and hasattr(test, "__code__") and is_shared(name, test)
    }
)


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_path):
    folder = tmp_path_factory.mktemp("cluster")
    flags = ("-m", tiny_path, "-np", "4", "--min-replicas", "2", "--max-replicas", "3")
    server = RayServer(folder, *flags, "--cpus", "0.3", delays_s=2.0)
    try:
        server.wait_ready()
        server.wait_until(lambda: server.n_replicas() == 2, 300)
        yield server
    finally:
        server.stop()


def total(server, name):
    """The sum of a metric over all replicas."""
    lines = server.request("/metrics")[1].splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(name + "{"))


def test_questions_about_a_picture_meet_at_one_replica(server, client, sample_media):  # noqa: F811
    for size in ((60, 40), (40, 60), (50, 50)):
        stream = BytesIO()
        Image.open(sample_media / "picture.png").resize(size).save(stream, "png")
        url = b64encode(stream.getvalue()).decode()
        before = total(server, "phi4mm_encoder_cache_misses")
        for words in ("one", "two", "three", "four"):
            ask(client, [text(words), image(url)], max_tokens=1)
        assert total(server, "phi4mm_encoder_cache_misses") - before == 1


def test_talks_are_spread_over_the_replicas(server, client):  # noqa: F811
    for i in range(12):
        ask(client, f"Question {i}", max_tokens=1)
    metrics = server.request("/metrics")[1].splitlines()
    answered = {
        line.partition('replica="')[2].partition('"')[0]
        for line in metrics
        if line.startswith('phi4mm_tokens_total{kind="generated"') and float(line.split()[1]) > 0
    }
    assert len(answered) == 2


ENDLESS = {"logit_bias": {"485": -100, "480": -100}}


def test_a_replica_that_dies_under_load_loses_only_what_it_had_begun(server, client):  # noqa: F811
    alone = {i: ask(client, f"Go {i}", max_tokens=8).choices[0].message.content for i in range(6)}
    # more than one replica takes at a time, so both have some
    streams = [
        ask(client, f"Long {i}", stream=True, max_tokens=600, extra_body=ENDLESS) for i in range(8)
    ]
    begun = [iter(stream) for stream in streams]
    for stream in begun:
        for _ in range(3):
            next(stream)
    with ThreadPoolExecutor(6) as pool:
        waiting = {
            i: pool.submit(ask, client, f"Go {i}", max_tokens=8, extra_body=ENDLESS)
            for i in range(6)
        }
        victim = server.replica_pids()[0]
        os.kill(victim, signal.SIGKILL)
        for future in waiting.values():
            future.result(300)  # each has an answer, from one replica or the other
    endings = [ending(stream) for stream in begun]
    assert "length" in endings  # those of the other replica went on
    assert "the replica died while it worked on this: try again" in endings
    server.wait_until(lambda: server.n_replicas() == 2, 600)
    assert victim not in server.replica_pids()
    again = {i: ask(client, f"Go {i}", max_tokens=8).choices[0].message.content for i in range(6)}
    assert again == alone


def ending(stream):
    """How a stream ends: the reason, or the error."""
    reason = None
    try:
        for chunk in stream:
            reason = chunk.choices[0].finish_reason if chunk.choices else reason
    except openai.APIError as error:
        return error.message
    return reason


def test_replicas_come_and_go_with_the_work(server, client):  # noqa: F811
    def work(i):
        while not is_enough:
            ask(client, f"Work {i}", max_tokens=200, extra_body=ENDLESS)

    is_enough = False
    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(work, i) for i in range(16)]
        try:
            server.wait_until(lambda: server.n_replicas() == 3, 600)
        finally:
            is_enough = True
    for future in futures:
        future.result()
    server.wait_until(lambda: server.n_replicas() == 2, 600)
    assert ask(client, "Still there?").choices[0].finish_reason


def batch(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "phi4mm", "batch", *map(str, arguments)],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sample_media):
    """Three pictures, two clips, one of each broken, and a text that is neither."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "below").mkdir()
    for name in ("a.png", "b.png", "below/a.png"):
        (folder / name).write_bytes((sample_media / "picture.png").read_bytes())
    for name in ("a.flac", "below/b.flac"):
        (folder / name).write_bytes((sample_media / "clip.flac").read_bytes())
    (folder / "broken.png").write_bytes((sample_media / "picture.png").read_bytes()[:200])
    (folder / "notes.txt").write_text("neither")
    return folder


def test_a_batch_goes_on_where_it_was(folder, tmp_path, tiny_path):
    out = tmp_path / "out"
    flags = ("-m", tiny_path, "-t", "1", "--cpus", "0.5", "--workers", "2", "-n", "3")
    done = batch(folder, "-o", out, "-p", "What is this?", *flags)
    assert done.returncode == 2, done.stderr
    assert "1 of 6 failed" in done.stderr
    assert "broken.png" in done.stderr.splitlines()[-1]
    answers = sorted(str(path.relative_to(out)) for path in out.rglob("*"))
    assert answers == [
        "a.flac.json", "a.png.json", "b.png.json", "below", "below/a.png.json", "below/b.flac.json"
    ]  # fmt: skip
    picture_answer, clip_answer = (
        json.loads((out / f"a.{x}.json").read_text()) for x in ("png", "flac")
    )
    assert picture_answer["usage"]["n_image"] > 0
    assert clip_answer["usage"]["n_audio"] > 0
    assert picture_answer["file"] == str(folder / "a.png")
    (out / "a.png.json").unlink()
    kept = (out / "b.png.json").stat().st_mtime_ns
    again = batch(folder, "-o", out, "-p", "What is this?", *flags)
    assert again.returncode == 2
    assert "4 of 6 have an answer" in again.stderr
    assert json.loads((out / "a.png.json").read_text()) == picture_answer
    assert (out / "b.png.json").stat().st_mtime_ns == kept
