"""Pulls a checkpoint and converts it on the way, one weight file after the other.

The headers of the weight files are read first: from them everything is planned, refused if it must
be, and measured against the disks before the weights are fetched.  Each weight file is then
fetched, checked, converted into its places in the files of the bundle, and dropped if the user
wants that.  So the disk never holds more than the checkpoint and the bundle; with ``stream`` no
more than the largest weight file and the bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from phi4mm.convert.checkpoint import open_checkpoint
from phi4mm.convert.convert import BundleReport
from phi4mm.convert.output_folder import refuse_other_parts
from phi4mm.convert.part_type import PartFormats
from phi4mm.progress import Progress, counter
from phi4mm.pull.cache import Cache
from phi4mm.pull.conversion import Conversion
from phi4mm.pull.download import Downloader
from phi4mm.pull.repository import Repository
from phi4mm.pull.source import CheckpointSource
from phi4mm.pull.space import Need

WORK_FOLDER: Final = ".pull"
_JOURNAL: Final = "journal.json"


def pull_checkpoint(
    repository: Repository,
    out_dir: Path,
    formats: PartFormats,
    *,
    cache: Cache,
    stream: bool = False,
    progress: Progress | None = None,
) -> BundleReport:
    """Fetch a checkpoint and make a bundle of it.

    An interrupted pull goes on where it was when it is called again with the same arguments.

    Args:
        repository: holds the checkpoint.
        out_dir: the bundle's folder; made if missing.
        formats: how each part is stored.
        cache: where the checkpoint is kept, and looked for.
        stream: do not keep weight files: each is removed once it is converted.  Those that were in
            the cache before stay.
        progress: told of every byte that comes and every byte that is written.

    Raises:
        InputError: the hub does not give the files, or there is no room.
        ModelFileError: they are not a checkpoint of this model, or arrived damaged.
    """
    target = Cache(out_dir / WORK_FOLDER) if stream else cache
    source = CheckpointSource(Downloader(repository), cache, target)
    refuse_other_parts(out_dir, ())  # which model they are of cannot be known yet
    snapshot = source.fetch_small()
    weights = source.weight_files(snapshot)
    checkpoint = open_checkpoint(snapshot, source.describe(snapshot, weights))
    journal = out_dir / WORK_FOLDER / _JOURNAL
    work = Conversion(checkpoint, out_dir, formats, journal, repository.commit)
    left = [file for file in weights if file.name not in work.journal.done]
    source.check_room(left, Need(out_dir, work.files.n_missing, "the bundle"), stream=stream)
    work.files.reserve()
    advance = counter(sum(file.n_bytes for file in left) + work.n_unwritten, progress)
    for file in left:
        path = source.fetch(file, advance)
        work.convert(file.name, path, advance)
        if stream:
            source.drop(file)
    report = work.finish()
    Cache(out_dir / WORK_FOLDER).remove()
    return report
