"""Makes the held-out sets: python -m evals.make DIR [--n 300] [--jobs 2].

DIR gets pictures, clips, a manifest for each ability, and ``abilities.json``, which
``phi4mm eval sample DIR`` reads. The same command makes the same items everywhere; the sound is
the same where the synthesisers are of the same versions.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from functools import partial
from itertools import chain
from multiprocessing import Pool
from multiprocessing.pool import Pool as WorkerPool
from pathlib import Path

from . import picture_items, speech_items, text_items
from .ability import Line, write_set


def make(folder: Path, n: int, jobs: int) -> dict[str, list[Line]]:
    """Write all sets into a folder; the items by ability."""
    folder.mkdir(parents=True, exist_ok=True)
    items = text_sets(n)
    with Pool(jobs) as pool:
        items |= picture_sets(folder, n, pool)
        items |= speech_sets(folder, n, pool, jobs)
    write_set(folder, items)
    return items


def text_sets(n: int) -> dict[str, list[Line]]:
    """The sets without media."""
    return {
        **text_items.facts(random.Random("facts"), n),
        "arithmetic": text_items.arithmetic(random.Random("arithmetic"), n),
        "tools": text_items.tools(random.Random("tools"), n),
    }


def picture_sets(folder: Path, n: int, pool: WorkerPool) -> dict[str, list[Line]]:
    """The sets with pictures alone, and silence."""
    makers: dict[str, tuple[Callable[[Path, int], Line], int]] = {
        "read": (picture_items.read_item, n),
        "typed": (picture_items.typed_item, n),
        "silence": (speech_items.silence_item, n // 10),
    }
    return {
        name: pool.map(partial(maker, folder), range(count), chunksize=8)
        for name, (maker, count) in makers.items()
    }


def speech_sets(folder: Path, n: int, pool: WorkerPool, jobs: int) -> dict[str, list[Line]]:
    """The sets in which somebody speaks; their clips are synthesised together."""
    plain = {
        name: speech_items.phrases(name, count)
        for name, count in (
            ("speech", n),
            ("speech_disturbed", n // 10 * 2),
            ("speech_8khz", n // 10 * 2),
        )
    }
    asked, questions = speech_items.spoken_questions(folder, n)
    recordings = speech_items.long_orders(n // 10)
    orders = [*chain(*plain.values()), *questions, *chain(*recordings)]
    waves = iter(speech_items.synthesise(orders, pool.map, 4 * jobs))
    items = {}
    for name, spoken in plain.items():
        own = [next(waves) for _ in spoken]
        items[name] = speech_items.clip_lines(folder, name, spoken, own)
    items["spoken"] = speech_items.with_sound(folder, asked, [next(waves) for _ in asked])
    items["speech_long"] = speech_items.long_lines(folder, recordings, list(waves))
    return items


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path, help="for the sets")
    parser.add_argument("--n", type=int, default=300, help="items of an ability (default: 300)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    arguments = parser.parse_args()
    for name, lines in make(arguments.folder, arguments.n, arguments.jobs).items():
        print(f"{name}: {len(lines)} items")


if __name__ == "__main__":
    main()
