"""The parser of a verb's flags: errors of one line, nothing overridden unseen, settings by flag."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from phi4mm.errors import SettingError

# what the Python interface calls a setting -> what the parsed flags call it
_SETTINGS = {
    "n_ctx": "ctx_size",
    "n_threads": "threads",
    "n_gpu_layers": "n_gpu_layers",
    "devices": "device",
    "main_gpu": "main_gpu",
    "type_k": "cache_type_k",
    "type_v": "cache_type_v",
    "flash_attention": "flash_attn",
    "n_slots": "parallel",
    "n_long_slots": "parallel_long",
    "max_waiting": "max_waiting",
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "max_tokens": "n_predict",
    "max_s": "max_piece",
    "tensor_parallel": "tensor_parallel",
    "data_parallel": "data_parallel",
    "pipeline_parallel": "pipeline_parallel",
    "n_media": "max_media",
    "port": "port",
    "min_replicas": "min_replicas",
    "max_replicas": "max_replicas",
    "n_cpus": "cpus",
    "n_gpus": "gpus",
    "n_fronts": "fronts",
}


class Parser(argparse.ArgumentParser):
    """Refuses a flag that is given twice and keeps one value: the first would be dropped unseen."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)

    def error(self, message: str) -> NoReturn:
        """Leave with one line."""
        self.exit(2, f"{self.prog.split()[0]}: {one_line(message)} (see {self.prog} --help)\n")

    def in_flags(self, error: SettingError) -> str:
        """What an error says, in the words of these flags."""
        for action in self._actions:
            if action.dest == _SETTINGS.get(error.name) and action.option_strings:
                return f"{'/'.join(action.option_strings)} {error.problem}"
        return str(error)


class _StoreOnce(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        given: set[str] = vars(namespace).setdefault("_given", set())
        if self.option_strings and self.dest in given:
            raise argparse.ArgumentError(self, "given twice: give it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


def one_line(text: str) -> str:
    """Text for a terminal, whatever characters a file's name has."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
