"""Where the console script and `python -m tilesmith` begin.

Invariant: before anything heavy is imported, Ctrl-C ends the process with one sentence; a traceback
through a library's import would say nothing to anybody.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit."""
    signal.signal(signal.SIGINT, _end)
    from tilesmith.command_line import main as run

    run()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"tilesmith: interrupted\n")
    os._exit(1)
