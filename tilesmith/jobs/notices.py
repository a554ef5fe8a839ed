"""What Tilesmith tells a Python program while it works: on the channel `tilesmith` of `logging`.

    logging.basicConfig(level=logging.INFO)             # its lines among the program's own
    logging.getLogger("tilesmith").setLevel("WARNING")  # none but warnings
    logging.getLogger("tilesmith").setLevel("DEBUG")    # every stage: imports, passes, code, search

A program that set nothing up reads the same lines on stderr, as the command line's users do.
"""

import logging
import sys

LOG = logging.getLogger("tilesmith")


def tell(text: str) -> None:
    """Say one line at the level INFO."""
    if LOG.hasHandlers() or LOG.level > logging.INFO or not LOG.propagate:
        LOG.info(text)
    elif sys.stderr is not None:
        print(text, file=sys.stderr)
