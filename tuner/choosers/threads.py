"""One thread for linear algebra while a search chooses.

Its matrices are small: several threads make them slower, most of all where cores are busy, and add
in another order, so that a search would depend on the number of cores.
"""

from contextlib import AbstractContextManager
from functools import cache
from typing import Any


def one_thread() -> AbstractContextManager[object]:
    """A block in which BLAS has one thread; what kernels use is left alone."""
    limits: AbstractContextManager[object] = _libraries().limit(limits=1, user_api="blas")
    return limits


@cache
def _libraries() -> Any:
    """Those of numpy and scipy, looked for once among all that the process has loaded."""
    import scipy.linalg  # noqa: F401  (brings a library of its own, which has to be there)
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()
