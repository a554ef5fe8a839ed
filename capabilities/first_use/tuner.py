"""The tuner: a process of the lowest priority that works on all orders of this user.

    python -m tilesmith.capabilities.first_use.tuner FOLDER

It goes round the orders whose processes live, and has a tuning job of some seconds for each in
turn (`rounds`). It ends when none is left, and within a second or so of the death of the last
process that has one. Invariants: one at a time in a folder, by a lock that dies with it; every
trial is in the database when it is finished; a job that ends early is told of as interrupted.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tilesmith.capabilities.first_use.priority import leave_cores, lowest_priority
from tilesmith.search_space.support.errors import TilesmithError

if TYPE_CHECKING:
    from tilesmith.capabilities.first_use.orders import OrderFolder
    from tilesmith.tuner.tasks.cancel import CancelToken

_LOOK_S = 0.5
"""Seconds between two looks at who lives."""
_LINGER = 4
"""Looks at no order at all before it ends: one may be about to be written."""
_PATIENCE_S = 15.0
"""Seconds that a job has to end in order when nobody is left; then it is ended as it is."""


def main(root: Path) -> None:
    """Work until nothing is left to do."""
    lowest_priority()
    from tilesmith.capabilities.first_use.orders import OrderFolder, every, tuner_lock
    from tilesmith.capabilities.first_use.rounds import another
    from tilesmith.tuner.tasks.cancel import CancelToken

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    nothing = 0
    with tuner_lock(root) as alone:
        while alone and nothing < _LINGER:
            folders = [folder for folder in every(root) if _is_open(folder)]
            if not folders:
                nothing += 1
                time.sleep(_LOOK_S)
                continue
            nothing = 0
            folder: OrderFolder = min(folders, key=lambda folder: folder.state.seconds)
            order, token = folder.order, CancelToken()
            leave_cores(1 if order is None else order.threads)
            with _watched(folder, token):
                another(folder, token)
            if token.reason.startswith("SIG"):
                return


def _is_open(folder: "OrderFolder") -> bool:
    """Whether an order is to be worked on; what only living processes need is deleted if not."""
    order = folder.order
    if order is None or not order.is_ours:
        return False
    if folder.owners():
        return not folder.state.ended
    with suppress(OSError, TilesmithError):
        folder.clear()
    return False


@contextmanager
def _watched(folder: "OrderFolder", token: "CancelToken") -> Iterator[None]:
    """Cancel what the block does when no process runs the model any more."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if not folder.owners():
                token.cancel("the end of the processes that run the model")
                if not over.wait(_PATIENCE_S):
                    os._exit(1)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
