"""A planned bundle, and how much of it is written: weight files in, parts of it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from phi4mm.convert.checkpoint import Checkpoint
from phi4mm.convert.convert import BundleReport, report_plan
from phi4mm.convert.identity import identity_of, trait
from phi4mm.convert.part_type import PartFormats
from phi4mm.convert.plan import plan_checkpoint
from phi4mm.convert.rows import bind
from phi4mm.convert.tensorfile import SourceKey, SourceTensor, open_tensors
from phi4mm.convert.writer import OutputTensor
from phi4mm.errors import ModelFileError
from phi4mm.modelfile.bundle import Bundle
from phi4mm.progress import Advance
from phi4mm.pull.growing import GrowingFiles, layout_of, part_path
from phi4mm.pull.journal import Journal

# In the place of the bundle id, which is known only when all weights have been seen.
_UNKNOWN_ID: Final = "0" * 32
_MAX_HELD_BYTES: Final = 1 << 20


class Conversion:
    """A conversion on its way.

    Args:
        checkpoint: its weights need not be here.
        out_dir: the bundle's folder.
        formats: how each part is stored.
        journal: path of the journal.
        commit: of the repository the weights come from.

    Attributes:
        files: the files of the bundle, on their way.
        journal: what is done.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        out_dir: Path,
        formats: PartFormats,
        journal: Path,
        commit: str,
    ) -> None:
        self._checkpoint = checkpoint
        self._out_dir = out_dir
        self._formats = formats
        self._journal_path = journal
        plan = plan_checkpoint(checkpoint, out_dir, formats, identity=_UNKNOWN_ID)
        self._outputs = [file.output for file in plan.files]
        self._names = {tensor.key: name for name, tensor in checkpoint.tensors.items()}
        self.files = GrowingFiles(self._outputs)
        found = Journal.find(journal, layout_of(self._outputs), commit)
        are_here = all(part_path(output.path).exists() for output in self._outputs)
        self.journal = found if are_here else Journal(found.layout, commit)

    @property
    def n_unwritten(self) -> int:
        """Bytes of tensors that are not written yet."""
        done = {self._checkpoint.path / name for name in self.journal.done}
        return sum(
            tensor.n_taken
            for output in self._outputs
            for tensor in output.tensors
            if not self._files_of(tensor) <= done or not done
        )

    def convert(self, name: str, path: Path, advance: Advance) -> None:
        """Write everything that a weight file completes.

        Raises:
            ModelFileError: the file is not what its header said, or a weight is no number.
        """
        file = self._checkpoint.path / name
        arrived = self._arrived(file, path)
        here = self._held() | arrived
        done = {self._checkpoint.path / done for done in self.journal.done}
        for index, output in enumerate(self._outputs):
            due = [
                (place, replace(tensor, rows=bind(tensor.rows, here)))
                for place, tensor in enumerate(output.tensors)
                if _is_due(self._files_of(tensor), file, done)
            ]
            self.files.write(index, due, advance)
        self._note(name, arrived, done | {file})

    def finish(self) -> BundleReport:
        """Give the files their identity and their names, and open what came of it."""
        identity = identity_of(self._checkpoint.config, self.journal.traits)
        plan = plan_checkpoint(self._checkpoint, self._out_dir, self._formats, identity=identity)
        self.files.finish([file.output for file in plan.files])
        with Bundle.open(self._out_dir) as bundle:
            assert bundle.bundle_id == identity
        return report_plan(plan)

    def _arrived(self, file: Path, path: Path) -> dict[SourceKey, SourceTensor]:
        """The tensors of a weight file, as they were described."""
        found = {t.name: replace(t, path=file) for t in open_tensors(path).values()}
        described = {t.name: t for t in self._checkpoint.tensors.values() if t.path == file}
        if found != described:
            raise ModelFileError(f"{path}: its header is not the one that was planned with")
        return {tensor.key: tensor for tensor in found.values()}

    def _held(self) -> dict[SourceKey, SourceTensor]:
        tensors = self._checkpoint.tensors
        return {
            tensors[name].key: replace(tensors[name], data=memoryview(data))
            for name, data in self.journal.held.items()
        }

    def _note(self, name: str, arrived: Mapping[SourceKey, SourceTensor], done: set[Path]) -> None:
        """Write into the journal what is done, with what is needed of the file later."""
        for key, tensor in arrived.items():
            self.journal.traits[self._names[key]] = trait(self._names[key], tensor)
        for source in self._needed_later(done):
            if source.key in arrived:
                assert source.n_bytes <= _MAX_HELD_BYTES, source
                self.journal.held[self._names[source.key]] = bytes(arrived[source.key].data)
        self.journal.done.append(name)
        self.journal.save(self._journal_path)

    def _needed_later(self, done: set[Path]) -> Iterator[SourceTensor]:
        for output in self._outputs:
            for tensor in output.tensors:
                if not self._files_of(tensor) <= done:
                    yield from tensor.rows.sources

    @staticmethod
    def _files_of(tensor: OutputTensor) -> set[Path]:
        return {source.path for source in tensor.rows.sources}


def _is_due(needed: set[Path], arrived: Path, done: set[Path]) -> bool:
    """Whether a tensor can be written now, and could not before."""
    if not needed:  # of the configuration alone: with the first file
        return not done
    return arrived in needed and needed <= done | {arrived}
