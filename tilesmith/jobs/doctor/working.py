"""Whether it works: a small model compiled and run, the cache of code, the database, counters."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tilesmith.codegen.host import object_cache
from tilesmith.jobs.databases import BY_DEFAULT, FILE, VARIABLE, located
from tilesmith.jobs.doctor.finding import Finding
from tilesmith.jobs.doctor.sample import product
from tilesmith.records.database import Database
from tilesmith.search_space.support.errors import TilesmithError

_SECTION = "working"
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_LEAST_MIB = 256


def findings() -> Iterator[Finding]:
    """Of the way from a model to native code, and of what it uses."""
    yield _compiles()
    yield _cache()
    yield _database()
    yield _counters()


def _compiles() -> Finding:
    """A product and an activation: compiled, run, compared with numpy."""
    try:
        error = _error()
    except TilesmithError as failure:
        return Finding(_SECTION, "compile and run", "problem", str(failure))
    if error <= 1e-5:
        return Finding(_SECTION, "compile and run", "fine", f"agrees with numpy to {error:.1e}")
    advice = "generated code is wrong on this processor: please report it with this output"
    return Finding(_SECTION, "compile and run", "problem", f"differs by {error:.1e}", advice)


def _error() -> float:
    model, x, expected = product(5, 37, 19)
    got = model.run({"x": x})["y"]
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def _cache() -> Finding:
    """Compiled code is kept between runs, if there is a place for it."""
    folder = object_cache.folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free >> 20
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        advice = f"every compilation starts anew; set {object_cache.ENVIRONMENT} to a folder"
        return Finding(_SECTION, "cache of code", "note", f"{folder}: {reason}", advice)
    if free < _LEAST_MIB:
        return Finding(_SECTION, "cache of code", "note", f"{folder}: {free} MiB free", "make room")
    return Finding(_SECTION, "cache of code", "fine", f"{folder}, {free / 1024:.0f} GiB free")


def _database() -> Finding:
    """The database that is used where none is named."""
    location = located(BY_DEFAULT)
    if location.location is None:
        advice = f"name one by --database, set {VARIABLE}, or tune: {FILE} is made here"
        return Finding(_SECTION, "database", "note", "none is meant by default", advice)
    if "://" not in location.location and not Path(location.location).exists():
        folder = Path(location.location).absolute().parent
        if not folder.is_dir():
            said = f"{location.display} cannot be made: there is no folder {folder}"
            return Finding(_SECTION, "database", "problem", said, f"make it, or set {VARIABLE}")
        if not os.access(folder, os.W_OK):
            said = f"{location.display} cannot be made: {folder} cannot be written"
            return Finding(_SECTION, "database", "problem", said, f"name another by {VARIABLE}")
        advice = "it is made by the first tuning job"
        return Finding(_SECTION, "database", "note", f"{location.display} is not there yet", advice)
    try:
        with Database.open(location.location, create=False) as database:
            stats = database.stats()
    except TilesmithError as failure:
        return Finding(_SECTION, "database", "problem", str(failure))
    return Finding(_SECTION, "database", "fine", f"{location.display}, {stats['trials']:,} trials")


def _counters() -> Finding:
    """Whether the kernel lets this process count cycles and cache misses (perf_event_open(2))."""
    try:
        level = int(_PARANOID.read_text())
    except (OSError, ValueError):
        return Finding(_SECTION, "hardware counters", "note", "this kernel has none to offer")
    if level <= 2 or os.geteuid() == 0:
        return Finding(_SECTION, "hardware counters", "fine", f"perf_event_paranoid is {level}")
    advice = "sysctl kernel.perf_event_paranoid=2 lets a process count what it does itself"
    value = f"refused: perf_event_paranoid is {level}"
    return Finding(_SECTION, "hardware counters", "note", value, advice)
