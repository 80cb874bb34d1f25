"""Answers every case with the reference and writes the goldens of the tests.

    cd tests && python -m oracle.golden [tiny] [heads]

Needs torch, transformers and peft (README.md beside this file); run by hand, never by the tests.

``goldens/NAME.json`` holds the cases, and fingerprints of the weights and media that were drawn;
``goldens/NAME.safetensors`` holds tensors named CASE/KIND:

    ids, argmax, lead     at every position; lead = first minus second logit
    rows, last            every stride-th row of logits, and the last row
    image.K, audio.K      every stride-th soft token of medium K, after the projector
    mel.K                 every stride-th frame of clip K
    tap.K.NAME            every stride-th row of an intermediate tensor of medium K
    tokens, steps, lead   of the greedy answer: its tokens, and logits and lead before each
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from oracle.cases import (
    ANSWER,
    N_BEFORE_CROSSING,
    N_GREEDY_STEPS,
    USER,
    Case,
    all_cases,
    stride,
)
from oracle.checkpoint import draw_tensors, fingerprint, write_checkpoint, write_json
from oracle.media import draw_media, write_media
from oracle.reference import Reference
from oracle.sizes import SIZES, Sizes

GOLDENS = Path(__file__).parents[1] / "goldens"
Record = dict[str, object]
Tensors = dict[str, torch.Tensor]

# Tensors that are kept for the tapped cases, where the model has them.
TAPS = {
    "vis": ("vis.layer0", "vis.hd_tokens"),
    "aud": (
        "aud.subsampled",
        "aud.block0.feed_forward_in",
        "aud.block0.self_attn",
        "aud.block0.conv",
        "aud.block0.feed_forward_out",
        "aud.block0",
        "aud.encoder_out",
    ),
}
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "13", "lazy", "dogs", ";", "and", "cat?")
# A greedy choice closer than this could tip on another machine.
LEAST_LEAD = 1e-2


def main(names: list[str]) -> None:
    for name in names or list(SIZES):
        with tempfile.TemporaryDirectory() as folder:
            media = write_media(Path(folder) / "media")
            checkpoint = write_checkpoint(name, Path(folder) / name, "hf")
            write_goldens(name, Reference(checkpoint, SIZES[name]), media)


def write_goldens(name: str, reference: Reference, media: Path) -> None:
    sizes = SIZES[name]
    tensors: Tensors = {}
    records: dict[str, Record] = {}
    for case in all_cases(sizes):
        record, kept = answer(reference, case, media)
        records[case.name] = record
        tensors |= {f"{case.name}/{kind}": x.contiguous().clone() for kind, x in kept.items()}
        print(f"{name} {case.name:20s} {record['n_tokens']:5d} tokens, std {record['std']:.2f}")
    user, greedy = greedy_answer(reference, sizes)
    tensors |= {f"greedy/{kind}": x.contiguous() for kind, x in greedy.items()}
    save_file(tensors, GOLDENS / f"{name}.safetensors")
    drawn = {"weights": fingerprint(draw_tensors(sizes)), "media": fingerprint(draw_media())}
    write_json(
        GOLDENS / f"{name}.json", {"drawn": drawn, "cases": records, "greedy": {"user": user}}
    )


def answer(reference: Reference, case: Case, media: Path) -> tuple[Record, Tensors]:
    """One case's record for the JSON file and its tensors by kind."""
    images = [media / name for name in case.images]
    audios = [media / name for name in case.audios]
    ids, embeddings = reference.embed(case.prompt, images, audios)
    logits = reference.logits(embeddings, case.adapter)
    kept = {
        "ids": ids.int(),
        "argmax": logits.argmax(-1).int(),
        "lead": lead(logits),
        "rows": every(logits),
        "last": logits[-1],
    }
    taps, soft_tokens = reference.taps, {}
    for kind, source in (("image", "vis"), ("audio", "aud")):
        features = [x[0] if x.dim() == 3 else x for x in taps.get(f"{source}.projected", [])]
        kept |= {f"{kind}.{k}": every(x) for k, x in enumerate(features)}
        soft_tokens[f"n_{kind}_tokens"] = [len(x) for x in features]
        if case.tapped:
            kept |= {
                f"tap.{k}.{name}": every(x.flatten(0, -2))
                for name in TAPS[source]
                for k, x in enumerate(taps.get(name, []))
            }
    kept |= {f"mel.{k}": every(mel) for k, mel in enumerate(taps.get("aud.mel", []))}
    record = {k: v for k, v in asdict(case).items() if k not in ("name", "tapped")}
    shape = {"n_tokens": len(ids), **soft_tokens, "std": round(float(logits.std()), 3)}
    return record | shape, kept


def every(x: torch.Tensor) -> torch.Tensor:
    return x[:: stride(len(x))]


def lead(logits: torch.Tensor) -> torch.Tensor:
    first, second = logits.topk(2, -1).values.unbind(-1)
    return first - second


# ---- a greedy answer that crosses the original context


def greedy_answer(reference: Reference, sizes: Sizes) -> tuple[str, Tensors]:
    """The user's message and the greedy answer of the first message whose answer is clear-cut."""
    for user in long_messages(reference, sizes):
        ids = reference.token_ids(USER + user + ANSWER)
        tokens, steps = greedy(reference, ids)
        if max(tokens) < sizes.n_bpe and float(lead(steps).min()) > LEAST_LEAD:
            kept = {"ids": ids, "tokens": tokens}
            ints = {k: torch.tensor(v, dtype=torch.int32) for k, v in kept.items()}
            return user, ints | {"steps": steps, "lead": lead(steps)}
    raise AssertionError("unreachable: messages never end")


def long_messages(reference: Reference, sizes: Sizes) -> Iterator[str]:
    """Messages whose prompts end ``N_BEFORE_CROSSING`` tokens before the original context does."""
    wanted = sizes.n_ctx_orig - N_BEFORE_CROSSING
    seed = 0
    while True:
        seed += 1
        rng = np.random.RandomState(seed)
        user = ""
        while len(reference.token_ids(USER + user + ANSWER)) < wanted:
            user += " " + WORDS[int(rng.random_sample() * len(WORDS))]
        if len(reference.token_ids(USER + user + ANSWER)) == wanted:
            yield user


def greedy(reference: Reference, ids: list[int]) -> tuple[list[int], torch.Tensor]:
    """The most likely tokens one after another, each from a full forward pass over all before."""
    ids, steps = list(ids), []
    for _ in range(N_GREEDY_STEPS):
        embeddings = torch.cat([reference.embedding(token) for token in ids])
        steps.append(reference.logits(embeddings, None)[-1])
        ids.append(int(steps[-1].argmax()))
    return ids[-N_GREEDY_STEPS:], torch.stack(steps)


if __name__ == "__main__":
    main(sys.argv[1:])
