"""Hardware counters of this process: cycles, instructions and cache misses, where the kernel gives
them.

`perf_event_open` by its number (linux/perf_event.h; man 2 perf_event_open): a counter for each
thread that there is, read before and after. Containers and virtual machines mostly refuse, and a
sentence says why. Only what runs in user mode is counted, which needs fewer rights.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

_CALLS = {"x86_64": 298, "aarch64": 241}
"""Number of the system call, by machine."""

EVENTS: Mapping[str, int] = {
    "cycles": 0,
    "instructions": 1,
    "cache references": 2,
    "cache misses": 3,
    "branch misses": 5,
}
"""Of PERF_TYPE_HARDWARE: `config` of each event."""

_SIZE = 112
"""Of `perf_event_attr` (PERF_ATTR_SIZE_VER5)."""
_USER_ONLY = (1 << 5) | (1 << 6)
"""exclude_kernel and exclude_hv."""
_TIMES = (1 << 0) | (1 << 1)
"""PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING: where counters take turns, counts are scaled."""

_TOLD = struct.Struct("=QQQ")
"""What a read gives: count, and nanoseconds that it was enabled and did count."""
_CLOSED_ON_EXEC = 1 << 3
"""PERF_FLAG_FD_CLOEXEC."""

_WHY = {
    errno.EACCES: "it asks for more rights (kernel.perf_event_paranoid, CAP_PERFMON)",
    errno.EPERM: "it asks for more rights (kernel.perf_event_paranoid, CAP_PERFMON)",
    errno.ENOSYS: "it has no perf_event_open",
    errno.ENOENT: "this processor, as it is seen from here, has no such counters",
    errno.EOPNOTSUPP: "this processor, as it is seen from here, has no such counters",
    errno.ENODEV: "this processor, as it is seen from here, has no such counters",
}


class Counters:
    """Counts inside a `with` block, of all threads that there are when it begins.

        with Counters() as counters:
            ...
        counters.counts, counters.why

    Attributes:
        counts: by name; empty where there are none.
        why: a clause that says why there are none, "" where there are.
    """

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}
        self.why = ""
        self._open: dict[str, list[int]] = {}

    def __enter__(self) -> "Counters":
        number = _CALLS.get(platform.machine()) if platform.system() == "Linux" else None
        if number is None:
            self.why = "this system has no perf_event_open"
            return self
        for name, config in EVENTS.items():
            files: list[int] = []
            for thread in _threads():
                descriptor = _opened(number, config, thread)
                if descriptor >= 0:
                    files.append(descriptor)
                elif descriptor != -errno.ESRCH:  # a thread that has ended counts nothing
                    self.why = self.why or _WHY.get(-descriptor, os.strerror(-descriptor))
                    _close(files)  # of some threads only, it would say too little
                    files = []
                    break
            if files:
                self._open[name] = files
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, files in self._open.items():
            counted = [_read(file) for file in files]
            _close(files)
            if any(running for _, running in counted):
                self.counts[name] = sum(count for count, _ in counted)
        if self.counts:
            self.why = ""
        elif self._open:
            self.why = "it lent the counters to others all the time"


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def _threads() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/task").iterdir()]


def _opened(number: int, config: int, thread: int) -> int:
    """A counter's file, or an error's number below 0."""
    attributes = bytearray(_SIZE)
    struct.pack_into("=IIQQQQQ", attributes, 0, 0, _SIZE, config, 0, 0, _TIMES, _USER_ONLY)
    return _called(number, attributes, thread)


def _called(number: int, attributes: bytearray, thread: int) -> int:
    """The system call, on whatever core the thread is, in no group."""
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    descriptor = library.syscall(
        ctypes.c_long(number), buffer, ctypes.c_int(thread), ctypes.c_int(-1), ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSED_ON_EXEC),
    )  # fmt: skip
    return int(descriptor) if descriptor >= 0 else -ctypes.get_errno()


def _read(file: int) -> tuple[float, int]:
    """What was counted, scaled where the counter had no turn all the time; and the nanoseconds that
    it had."""
    content = os.read(file, _TOLD.size)
    if len(content) < _TOLD.size:  # the kernel took the counter away
        return 0.0, 0
    count, enabled, running = _TOLD.unpack(content)
    return (count * enabled / running if running else 0.0), running
