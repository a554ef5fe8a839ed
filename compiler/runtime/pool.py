"""`Pool`: the memory that runs take turns in; as many runs go on at once as there are cores for.

A run takes an `Area` and gives it back. Where one is free that costs an operation on a list, and no
lock; where none is, another is made, up to `limit`; then a run waits for one. Areas that were not
needed for a while are let go. Invariants: an area has one holder at a time; the one used last is
taken first, for it is in the caches; what is held for long (`hold`) does not count towards the
limit, so that nobody waits for it.
"""

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.compiler.recipe.areas import NOTHING, Bytes
from tilesmith.search_space.support.errors import JobError

IDLE_S = 10.0
"""Seconds after which an area that nobody took is let go, when others are given back."""

_LINKED = 64
"""Models (or sizes of one) that stay linked to an area, those that were linked last."""


def arena_of(name: str, nbytes: int) -> Bytes:
    """Memory for activations of model `name`; `JobError` if there is not enough."""
    try:
        return aligned_bytes(max(64, nbytes))
    except MemoryError as error:
        raise no_room(name, nbytes) from error


def no_room(name: str, nbytes: int) -> JobError:
    """The error for a model whose tensors this machine cannot hold."""
    return JobError(
        f"'{name}' needs {nbytes / 2**30:.4g} GiB for its tensors, more than this machine gives; "
        "try a smaller batch"
    )


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Area:
    """An arena, and what is linked to it.

    Attributes:
        arena: activations; grows to the largest model that is linked to it.
        models: what is linked to it, by the model's key.
        idle_since: when it was given back (`time.monotonic`).
    """

    __slots__ = ("arena", "idle_since", "models")

    def __init__(self) -> None:
        self.arena: Bytes = NOTHING
        self.idle_since = 0.0
        self.models: dict[object, Any] = {}

    def add(self, model: object, linked: Any) -> None:
        """Remember what a model is here; the one that was linked first may go for it."""
        while len(self.models) >= _LINKED:
            del self.models[next(iter(self.models))]
        self.models[model] = linked

    def reserve(self, name: str, nbytes: int) -> None:
        """Make room for so many bytes; `JobError` if there is not enough memory."""
        if nbytes > self.arena.size or not self.arena.size:
            self.models.clear()
            self.arena = NOTHING
            self.arena = arena_of(name, nbytes)


class Pool:
    """See the module's docstring.

    Args:
        threads: how many threads a run takes.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._free: list[Area] = []
        self._start()
        _pools.add(self)

    def _start(self) -> None:
        self._lock = threading.Condition()
        self._made = len(self._free)
        self._waiting = 0

    @property
    def limit(self) -> int:
        """How many runs go on at once: as many as have cores, and another that gets ready."""
        return max(2, -(-cores() // self._threads))

    @property
    def size(self) -> int:
        """How many areas there are, but those that are held."""
        return self._made

    def take(self) -> Area:
        """An area that nobody else has; waits for one where there are as many as may be."""
        try:
            return self._free.pop()
        except IndexError:
            return self._another()

    def give(self, area: Area) -> None:
        """Give back what `take` gave."""
        area.idle_since = time.monotonic()
        self._free.append(area)
        if self._waiting:
            with self._lock:
                self._lock.notify()
        elif len(self._free) > 1:
            self._trim()

    @contextmanager
    def lent(self) -> Iterator[Area]:
        """An area for a while, of those that are held."""
        area = self.hold()
        try:
            yield area
        finally:
            self.release(area)

    def hold(self) -> Area:
        """An area to keep for as long as one likes."""
        with self._lock:
            try:
                area = self._free.pop()
            except IndexError:
                return Area()
            self._made -= 1
            return area

    def release(self, area: Area) -> None:
        """Give back what `hold` gave."""
        with self._lock:
            if self._made < self.limit:
                self._made += 1
                area.idle_since = time.monotonic()
                self._free.append(area)
                self._lock.notify()

    def _another(self) -> Area:
        with self._lock:
            self._waiting += 1  # before the list is looked at: who gives back later sees it
            try:
                while True:
                    try:
                        return self._free.pop()
                    except IndexError:
                        pass
                    if self._made < self.limit:
                        self._made += 1
                        return Area()
                    self._lock.wait()
            finally:
                self._waiting -= 1

    def _trim(self) -> None:
        """Let go the area that nobody took for longest, if that is long ago."""
        with self._lock, suppress(IndexError):  # others take meanwhile, without the lock
            if time.monotonic() - self._free[0].idle_since > IDLE_S:
                del self._free[0]
                self._made -= 1


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _start_again() -> None:
    """In a forked child, where what other threads had taken never comes back."""
    for pool in list(_pools):
        pool._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again)
