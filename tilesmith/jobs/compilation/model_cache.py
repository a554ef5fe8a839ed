"""Compiled models on disk: what compiles a model that was compiled before loads it instead.

    FOLDER/KEY.json         what the model was compiled from: `Inputs`
    FOLDER/KEY.DIGEST.tsm   its artifact, by the digest of that; weights stay in the file

The key is a digest of what was asked: the model's path, the options, the environment and this
machine. An entry is good as long as every file that it was compiled from is the one that it was:
the model, weights beside it, the database, packs, calibrations, our own sources and the packages
that are installed. A file is known by its place on disk, its size and its times, as version control
knows it; nobody can set the time of its last change (ctime) back. So no source of the compiler has
to be imported, nor any model read, to load one.

Invariants: what cannot be known so (a model in memory, a database behind a URL, extensions of other
packages) is not kept; files appear whole, and only files that nobody else can write are read; the
folder is bounded (`LIMIT`), those used least recently go first; whatever fails costs the entry, and
never the job.
"""

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilesmith.codegen.host import object_cache
from tilesmith.codegen.host.machine import host_target
from tilesmith.jobs.environment import stated
from tilesmith.jobs.notices import LOG
from tilesmith.jobs.requests.request import PRECISIONS, Request, Resolved
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.support.files import cache_folder, written

if TYPE_CHECKING:
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.compiler.varying.executable import VaryingExecutable

    Compiled = Executable | VaryingExecutable

LIMIT = "TILESMITH_CACHE_MIB"
"""Environment variable: how many MiB compiled models may take; 0 keeps none."""
_MIB = 2048
_NOT_DECISIVE = (LIMIT, object_cache.ENVIRONMENT, "TILESMITH_TUNE", "TILESMITH_DATABASE")
"""Variables that decide nothing, or what the request says."""
_TICK_S = 0.05
"""A file that changed within so many seconds might change again at the same time of its system."""
_ABANDONED_S = 3600.0
"""Nobody writes a model for so long."""

State = list[int] | None
"""What a file is known by; None: there is none."""


@dataclass(frozen=True)
class Inputs:
    """The files that a model was compiled from, as they were before.

    Attributes:
        files: what each is known by, by its path.
        installation: digest of what compiled it.
        settled: whether no file had changed just before it was looked at.
    """

    files: Mapping[str, State]
    installation: str
    settled: bool = field(default=True, compare=False)

    @classmethod
    def of(cls, paths: Iterable[str]) -> "Inputs":
        """Files as they are now."""
        lately = time.time_ns() - _TICK_S * 1e9
        files = {path: _state(path) for path in paths}
        settled = all(state is None or state[-1] < lately for state in files.values())
        return cls(files, _installation(), settled)

    @property
    def digest(self) -> str:
        """Of all of it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return json.dumps({"files": self.files, "installation": self.installation})


@dataclass(frozen=True)
class CacheEntry:
    """Where one compiled model is kept, whether it is there or not.

    Attributes:
        record: path of the file that says what it was compiled from.
        files: paths that decide what it is, as far as is known without the model.
    """

    record: Path
    files: tuple[str, ...]

    def load(self) -> "Compiled | None":
        """The model, if it is there and what it was compiled from is still the same."""
        try:
            if not (_is_ours(self.record.parent) and _is_ours(self.record)):
                return None
            inputs = Inputs(**json.loads(self.record.read_text()))
            artifact = self._artifact(inputs)
            known = {*self.files} <= {*inputs.files}
            if not known or inputs != Inputs.of(inputs.files) or not _is_ours(artifact):
                return None
            from tilesmith.compiler.varying.executable import load

            model = load(artifact)
            os.utime(self.record)  # it was used now
            return model
        except Exception as error:  # whatever somebody has put there
            LOG.debug("the compiled model of '%s' is not used: %s", self.record, error)
            return None

    def _artifact(self, inputs: Inputs) -> Path:
        return self.record.with_suffix(f".{inputs.digest}.tsm")

    def inputs(self) -> Inputs:
        """What the model would be compiled from now."""
        return Inputs.of(self.files)

    def store(self, model: "Compiled", inputs: Inputs) -> None:
        """Keep a model; it is written by a thread of its own, which outlasts the main one.

        Args:
            inputs: as they were before it was compiled.
        """
        threading.Thread(target=self._store, args=(model, inputs), name="tilesmith-cache").start()

    def _store(self, model: "Compiled", inputs: Inputs) -> None:
        folder = self.record.parent
        try:
            whole = Inputs.of((*self.files, *_weights_beside(Path(self.files[0]))))
            same = all(whole.files[path] == inputs.files[path] for path in self.files)
            if not (whole.settled and same and whole.installation == inputs.installation):
                return
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(folder) or not _has_room(folder, model):
                return
            model.save(self._artifact(whole))
            with written(self.record) as stream:
                stream.write(whole.to_json().encode())
            for former in folder.glob(f"{self.record.stem}.*.tsm"):
                if former != self._artifact(whole):
                    former.unlink(missing_ok=True)
            _shrink(folder)
        except (OSError, RuntimeError, TilesmithError) as error:
            LOG.debug("the compiled model of '%s' is not kept: %s", self.record, error)


def cache_entry(request: Request, require_tuned: bool) -> CacheEntry | None:
    """Where what a request compiles is kept; None where it is not."""
    if (
        not isinstance(request.subject, str | Path)
        or "://" in str(request.database)
        or PRECISIONS.get(request.precision) == "int8"  # of data, perhaps
        or not _limit()
        or "TILESMITH_TRUSTED_KEY" in os.environ  # it trusts no artifact that is not signed
    ):
        return None
    try:
        return _entry(request, require_tuned)
    except (OSError, ValueError, TypeError, TilesmithError):  # who compiles it says what is wrong
        return None


def compiled(request: Request, require_tuned: bool = False) -> "tuple[Compiled, Resolved]":
    """What a request compiles, or has compiled before, and what it asks for; errors as
    `Request.resolved` and `build_executable`.
    """
    entry = cache_entry(request, require_tuned)
    model = entry.load() if entry is not None else None
    if model is not None:
        return model, request.resolved_for(model.recipe.target)
    from tilesmith.jobs.compilation.compiling import build_executable

    inputs = entry.inputs() if entry is not None else None
    resolved = request.resolved()
    model = build_executable(resolved, require_tuned)
    if entry is not None and inputs is not None:
        entry.store(model, inputs)
    return model, resolved


def _entry(request: Request, require_tuned: bool) -> CacheEntry:
    here = {n: v for n, v in os.environ.items() if n.startswith("TILESMITH_")}
    target, database = request.target, request.database
    packs = tuple(map(str, request.packs or ()))
    named = [*packs, *(part for v in here.values() for part in v.split(os.pathsep))]
    named += [target] if isinstance(target, str) else []
    files = [_whole(str(request.subject)), *_calibrations()]
    files += [_whole(name) for name in named if Path(name).is_file()]
    if database is not None:
        files += [_whole(database), f"{_whole(database)}-wal"]
    asked = [
        sys.version, files, require_tuned, packs, request.packs is None,
        request.threads or 1, request.precision, request.bits, request.chips,
        target.to_json() if isinstance(target, Target) else target, host_target().to_json(),
        sorted((n, v) for n, v in here.items() if n not in _NOT_DECISIVE),
        *(sorted(map(repr, (one or {}).items())) for one in
          (request.shapes, request.settings, request.updates)),
    ]  # fmt: skip
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
    return CacheEntry(object_cache.folder() / "models" / f"{key}.json", tuple(files))


def _limit() -> int:
    """Bytes that compiled models may take; `InputError` where the variable is no number."""
    return int(stated(LIMIT) or _MIB) << 20


def _whole(path: str | Path) -> str:
    return os.path.realpath(path)


def _state(path: str) -> State:
    """What a file or folder is known by: nothing where it is not there, or a log that is empty."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    if not status.st_size:
        return None
    which = status.st_dev, status.st_ino, status.st_size
    return [*which, status.st_mtime_ns, status.st_ctime_ns]


def _calibrations() -> list[str]:
    """Measurements of machines that targets may take numbers from."""
    folder = cache_folder("TILESMITH_CALIBRATION", "calibration")
    return list(map(str, sorted(folder.glob("*.json"))))


def _installation() -> str:
    """A digest of our own code, as it lies on disk, and of which packages are installed.

    An installed package's record is written when its files are; of a checkout every source is
    looked at. Installing any other package changes the folder that it is put in.
    """
    root = Path(__file__).parents[2]
    records = sorted(root.parent.glob("tilesmith-*.dist-info/RECORD"))
    digest = hashlib.sha256()
    for source in _sources(str(root)) if not records else [f"{_state(str(r))}" for r in records]:
        digest.update(f"{source}\n".encode())
    for path in sys.path:
        if Path(path).name in ("site-packages", "dist-packages"):
            digest.update(f"{path} {_state(path)}\n".encode())
    return digest.hexdigest()


def _sources(folder: str) -> list[str]:
    """What all sources below a folder are known by, in a fixed order."""
    files = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith((".py", ".toml", ".json")):
                status = entry.stat()
                files.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
            elif not entry.name.startswith(("_", ".")) and entry.is_dir():
                files += _sources(entry.path)
    return files


def _weights_beside(model: Path) -> list[str]:
    """Files that hold weights of an ONNX model."""
    from tilesmith.compiler.driver.front_end import format_of
    from tilesmith.compiler.onnx.files.file import weight_files

    return [] if format_of(model) is not None else [_whole(file) for file in weight_files(model)]


def _is_ours(path: Path) -> bool:
    return object_cache.is_ours(path.stat())


def _has_room(folder: Path, model: "Compiled") -> bool:
    """Whether a model is small enough, and extensions of others had no part in it."""
    from tilesmith.search_space.support.extensions import installed

    volume = os.statvfs(folder) if hasattr(os, "statvfs") else None
    free = volume.f_bavail * volume.f_frsize if volume else _limit()
    needs = model.recipe.constants.nbytes
    return needs < min(_limit() / 2, free / 8) and not installed()


def _shrink(folder: Path) -> None:
    """Delete models, those used least recently first, until the others fit; and what a writer that
    was killed has left behind."""
    total = 0
    known = {record.stem for record in folder.glob("*.json")}
    for file in (*folder.glob(".*.partial"), *folder.glob("*.tsm")):
        is_old = file.stat().st_mtime < time.time() - _ABANDONED_S
        if is_old and file.name.partition(".")[0] not in known:
            file.unlink(missing_ok=True)
    for record in sorted(folder.glob("*.json"), key=lambda path: -path.stat().st_mtime):
        artifacts = list(folder.glob(f"{record.stem}.*.tsm"))
        total += sum(artifact.stat().st_size for artifact in artifacts)
        if total > _limit():
            for file in (record, *artifacts):
                file.unlink(missing_ok=True)
