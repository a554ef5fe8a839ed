"""Where the console script and `python -m tilesmith` begin.

Invariants: before anything heavy is imported, a signal ends the process with one sentence (a
traceback through a library's import would say nothing to anybody); and what the process is not
going to use of a library is not imported with it.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import NoReturn

from tilesmith.search_space.support.ending import STOPPED, exit_code, heeded


def main() -> NoReturn:
    """Run the command line and exit."""
    for number in heeded():
        signal.signal(number, _end)
    import_xgboost_alone()
    from tilesmith.command_line import main as run

    run()


def import_xgboost_alone() -> None:
    """Have xgboost imported without scikit-learn, as where that is not installed.

    It takes it, and with it SciPy's statistics and pandas, as base classes of estimators that no
    command uses: nine tenths of its import. This process is ours; in a user's own, who may want
    those estimators, nothing is changed.
    """
    sys.meta_path.insert(0, _WithoutEstimators())


class _WithoutEstimators(MetaPathFinder):
    """Finds no scikit-learn while xgboost looks for it; afterwards and elsewhere it is found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "sklearn":
            asking = sys.modules.get("xgboost.compat")
            if asking is not None and not hasattr(asking, "SKLEARN_INSTALLED"):
                raise ModuleNotFoundError("not needed here", name=fullname)
        return None


def _end(number: int, frame: FrameType | None) -> NoReturn:
    with suppress(OSError):  # its terminal may be what is gone
        os.write(2, f"tilesmith: {STOPPED[number]}\n".encode())
    os._exit(exit_code(number))
