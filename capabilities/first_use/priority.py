"""What a process of the lowest priority is, and whether the machine has time for it."""

import os
from contextlib import suppress


def lowest_priority() -> None:
    """Let this process, and those it starts, run only where nobody else wants to."""
    with suppress(OSError):
        os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
