"""Export into a file, in several processes: each writes the trials of some series after the other.

Invariant: the bytes do not depend on the number of processes. A packed file is a row of gzip
members, one for the header and one for every `SERIES_IN_PART` series, without times or names in
them; every program that reads gzip reads it as one.

What is written is what was there when it began (trials have numbers, in the order they came); what
somebody removes meanwhile may be missing.
"""

import gzip
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import func, select

from tilesmith.records.database import Database
from tilesmith.records.exchange import lines
from tilesmith.records.exchange.parallel import in_order
from tilesmith.records.questions.queries import Filter
from tilesmith.records.schema.models import TRIALS
from tilesmith.records.trials.incoming import SeriesKey

SERIES_IN_PART = 64

_LEVEL = 6


@dataclass(frozen=True)
class _Part:
    """Some series of a database, to be written to `path`.

    Attributes:
        until: the highest number of a trial that is written.
        packed: whether as gzip.
    """

    location: str
    where: Filter
    series: Sequence[tuple[SeriesKey, int]]
    until: int
    path: Path
    packed: bool


def export_file(
    database: Database,
    location: str,
    file: BinaryIO,
    where: Filter,
    *,
    processes: int = 1,
    packed: bool = False,
) -> int:
    """Write the header and every trial of `where`; how many trials.

    Args:
        location: where the processes open the database.
    """
    with database.reading() as connection:
        header = lines.header(connection)
        series = lines.series_of(connection, where)
        until = connection.execute(select(func.max(TRIALS.c.id))).scalar() or 0
    text = f"{header}\n".encode()
    file.write(gzip.compress(text, _LEVEL, mtime=0) if packed else text)
    count = 0
    with tempfile.TemporaryDirectory(prefix="tilesmith-export-") as folder:

        def parts() -> Iterator[_Part]:
            for start in range(0, len(series), SERIES_IN_PART):
                some = series[start : start + SERIES_IN_PART]
                path = Path(folder) / f"part{start}"
                yield _Part(location, where, some, until, path, packed)

        for path, written in in_order(write_part, parts(), processes):
            with path.open("rb") as part:
                shutil.copyfileobj(part, file, 1 << 20)
            path.unlink()
            count += written
    return count


def write_part(part: _Part) -> tuple[Path, int]:
    """Write a part to its file; the file and the number of its lines."""
    count = 0
    with (
        Database.open(part.location, create=False, read_only=True) as database,
        database.reading() as connection,
        part.path.open("wb") as plain,
        gzip.GzipFile("", "wb", _LEVEL, plain, mtime=0) if part.packed else plain as file,
    ):
        for line in lines.lines_of(connection, part.series, part.where, part.until):
            file.write(f"{line}\n".encode())
            count += 1
    return part.path, count
