"""A measurement on disk: what kind, of which files, on which machine, with which result.

``phi4mm card`` reads these, so that nothing in a model card is typed by hand.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from phi4mm.errors import InputError
from phi4mm.measurement.fingerprint import FileIdentity, identify
from phi4mm.measurement.machine import Machine
from phi4mm.measurement.staged_file import staged_file
from phi4mm.modelfile.bundle import Bundle

Kind = Literal["perplexity", "kl_divergence", "eval", "bench", "plan", "verify"]
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One measurement.

    Attributes:
        kind: what was measured.
        bundle_id: of the bundle, if it has one.
        files: the bundle's files.
        machine: where.
        result: the numbers, as JSON values.
    """

    kind: Kind
    bundle_id: str | None
    files: tuple[FileIdentity, ...]
    machine: Machine
    result: dict[str, Any]

    def to_json(self) -> str:
        """The record as one line."""
        return json.dumps({"phi4mm_record": FORMAT, **asdict(self)}, ensure_ascii=False)

    def write(self, path: Path) -> None:
        """Write the record to a file of its own.

        Raises:
            InputError: the file cannot be written.
        """
        with staged_file(path) as stream:
            stream.write(f"{self.to_json()}\n".encode())


def identities(bundle: Bundle) -> tuple[FileIdentity, ...]:
    """The identities of a bundle's files, the decoder's first."""
    parts = [bundle.decoder, bundle.mmproj, *bundle.adapters.values()]
    return tuple(identify(part.file) for part in parts if part is not None)


def new_record(kind: Kind, bundle: Bundle, result: dict[str, Any], n_threads: int) -> Record:
    """A record of a measurement made just now on this machine."""
    return Record(kind, bundle.bundle_id, identities(bundle), Machine.this(n_threads), result)


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        InputError: it cannot be read, or is no record of this format.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("phi4mm_record") != FORMAT or values["kind"] not in get_args(Kind):
            raise ValueError("unknown format or kind")
        files = tuple(FileIdentity(**file) for file in values.pop("files"))
        machine = Machine(**values.pop("machine"))
        return Record(files=files, machine=machine, **values)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            f"{path}: not a record of a measurement (format {FORMAT}): make one with the option "
            f"-o of perplexity, eval, bench, plan or verify"
        ) from None
