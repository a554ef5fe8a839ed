"""Work on records in several processes, in one order whatever their number.

Invariant: results come in the order of what was asked for; at most two for each process are under
way. A process whose parent died ends, too.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

A = TypeVar("A")
R = TypeVar("R")


def in_order(function: Callable[[A], R], items: Iterable[A], processes: int) -> Iterator[R]:
    """Like `map`, but in `processes` processes; 1 means the calling process.

    Args:
        function: a function of a module; what it takes and gives is plain data.
    """
    if processes <= 1:
        yield from map(function, items)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    waiting: deque[Future[R]] = deque()
    pool = ProcessPoolExecutor(processes, get_context("spawn"), end_with_parent)
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def end_with_parent() -> None:
    """End this process when the process that started it has ended."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)
