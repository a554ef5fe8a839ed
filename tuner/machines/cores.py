"""Cores that measure are owned: a claim a core, which the whole machine honours.

Two jobs, or two workers of one, that measured on the same core would time each other. So whoever
measures claims whole cores first: a lock on one file for each in a folder that all processes of the
machine share. The lock is the kernel's (`flock(2)`), so that a process that dies, however it dies,
holds nothing. A core with several hardware threads is claimed whole, and the first of them
measures: its siblings share its units.

Invariants: never more claims than cores; what cannot be claimed is said in a sentence that names
who holds it, never shared silently. A core is named by the first of its hardware threads.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tilesmith.search_space.support.errors import InputError, JobError

ENVIRONMENT = "TILESMITH_CORES"
"""The folder of claims, in place of the machine's own: containers that share cores share it."""
_FOLDERS = ("/run/lock", "/tmp")  # the first that is there and may be written
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


class NoCoreError(JobError):
    """Cores are all claimed by others."""


def usable() -> list[int]:
    """Hardware threads that this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def siblings(thread: int) -> tuple[int, ...]:
    """Hardware threads of the core that one belongs to, itself among them, in order."""
    try:
        return parse_list(Path(_SIBLINGS.format(thread)).read_text())
    except (OSError, ValueError):
        return (thread,)


def parse_list(text: str) -> tuple[int, ...]:
    """Numbers of a list as the kernel writes it: "0-2,8" is (0, 1, 2, 8)."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def physical(threads: Sequence[int]) -> list[int]:
    """The cores of some hardware threads, each by its first thread among them."""
    cores: dict[tuple[int, ...], int] = {}
    for thread in sorted(threads):
        cores.setdefault(siblings(thread), thread)
    return list(cores.values())


@dataclass
class CoreClaim:
    """Cores that this process owns until `release` (or its death).

    Attributes:
        cores: hardware threads to measure on, one a core.
    """

    cores: tuple[int, ...]
    _locks: list[int] = field(default_factory=list, repr=False)

    @property
    def others(self) -> list[int]:
        """Hardware threads that may do anything else: make code, say; all if none is left."""
        owned = {thread for core in self.cores for thread in siblings(core)}
        return [thread for thread in usable() if thread not in owned] or usable()

    def release(self) -> None:
        """Give the cores back."""
        while self._locks:
            os.close(self._locks.pop())

    def __enter__(self) -> "CoreClaim":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def claim(
    count: int,
    among: Sequence[int] | None = None,
    *,
    keep_free: int = 0,
    folder: Path | None = None,
) -> CoreClaim:
    """Own `count` cores alone, from the last on: the first serve interrupts on most machines.

    Args:
        among: hardware threads to choose from; None: those that this process may use.
        keep_free: cores of these that nobody claims: they make code and run everything else.

    Raises:
        InputError: there are never so many.
        NoCoreError: there are, but others hold them; the sentence says who.
    """
    cores = physical(usable() if among is None else among)
    if count < 1 or count + keep_free > len(cores):
        kept = f" beside {keep_free} kept free" if keep_free else ""
        raise InputError(
            f"{_cores(count)}{kept} cannot be measured on: this process may use "
            f"{_cores(len(cores))}"
        )
    holders: set[int] = set()
    with _all_free(cores, folder or default_folder(), holders) as free:
        if len(free) < count + keep_free:
            raise NoCoreError(_refusal(count, len(cores), keep_free, holders))
        chosen = sorted(free)[-count:]
        return CoreClaim(tuple(chosen), [free.pop(core) for core in chosen])


def free_cores(among: Sequence[int] | None = None, folder: Path | None = None) -> list[int]:
    """Return the cores that no process has claimed at this moment, in ascending order."""
    cores = physical(usable() if among is None else among)
    with _all_free(cores, folder or default_folder(), set()) as free:
        return sorted(free)


def default_folder() -> Path:
    """Where the machine's claims are.

    Raises:
        JobError: nothing can be written there.
    """
    given = os.environ.get(ENVIRONMENT)
    roots = [Path(root) for root in _FOLDERS if os.access(root, os.W_OK | os.X_OK)]
    if not given and not roots:
        raise JobError(
            f"no folder for claims of cores: neither of {' and '.join(_FOLDERS)} can be written; "
            f"name one that all processes of this machine share in {ENVIRONMENT}"
        )
    folder = Path(given) if given else roots[0] / "tilesmith-cores"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # another user made it, open to all
            folder.chmod(0o1777)
    except OSError as error:
        raise JobError(
            f"the folder of core claims '{folder}' cannot be made: {error.strerror}"
        ) from error
    return folder


@contextlib.contextmanager
def _all_free(cores: Sequence[int], folder: Path, holders: set[int]) -> Iterator[dict[int, int]]:
    """Every core that is free, with its lock; what is still in the mapping at the end is given
    back. One process at a time looks: looking is locking."""
    turn = _opened(folder / "turn")
    free: dict[int, int] = {}
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for core in cores:
            lock = _lock(folder / f"core-{core}", holders)
            if lock is not None:
                free[core] = lock
        yield free
    finally:
        for lock in (*free.values(), turn):
            os.close(lock)


def _lock(path: Path, holders: set[int]) -> int | None:
    """A locked descriptor of a core's file; None if another has it, who joins `holders`."""
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holders |= _holders(os.fstat(descriptor).st_ino)
        os.close(descriptor)
        return None
    return descriptor


def _opened(path: Path) -> int:
    """A descriptor to lock.

    In a folder open to all, others' files may be opened for reading only (fs.protected_regular):
    enough to lock. They are never removed: a removed file could be locked twice.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY, 0o644)
            os.fchmod(descriptor, 0o644)  # whatever the umask
            os.close(descriptor)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise JobError(f"the core claim '{path}' cannot be made: {error.strerror}") from error


def _holders(inode: int) -> set[int]:
    """Processes that lock a file, as far as the system tells (proc(5), /proc/locks)."""
    pids = set()
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
                pids.add(int(words[4]))
    return pids


def _refusal(count: int, cores: int, keep_free: int, holders: set[int]) -> str:
    who = ", ".join(map(str, sorted(number for number in holders if number > 0)))
    by = f" (processes {who})" if who else ""
    kept = f", {keep_free} of them kept free" if keep_free else ""
    return (
        f"{_cores(count)} to measure on {'is' if count == 1 else 'are'} not free: others measure "
        f"on this machine's {_cores(cores)}{kept}{by}; wait for them, or start fewer workers"
    )


def _cores(count: int) -> str:
    return f"{count} core" + ("" if count == 1 else "s")
