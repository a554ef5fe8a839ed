"""Kernels in NKI in Python: `tilesmith.nki`, and who reads them.

kernel = tilesmith.nki("silu.py::kernel", {"x": ((128, 2, 96), "float32")}, target="trn1")
kernel.run({"x": x}); kernel.time().makespan
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from tilesmith.search_space.support.errors import DependencyError
from tilesmith.search_space.support.extensions import rooms


def reader(module: str) -> Any:
    """A module of the room `nki` of the family that reads such kernels.

    Raises:
        DependencyError: no family that is installed does.
    """
    for room in rooms("nki"):
        if ".families." in room:
            return import_module(f"{room}.{module}")
    raise DependencyError(
        "no installed family reads kernels in NKI; install the whole of Tilesmith, or copy the "
        "family that does back"
    )


def nki(
    kernel: str,
    arguments: Mapping[str, Any],
    target: str = "",
    grid: Sequence[int] = (),
    settings: Mapping[str, str] | None = None,
) -> Any:
    """Read a kernel written in NKI, unedited, for a described core.

    Args:
        kernel: "file.py::function"; the file runs in a process of its own, with your rights.
        arguments: by the names of the function's parameters: (shape, dtype) or an array for a
            tensor, or a plain value.
        target: whose core it is; the family's first unless given.
        grid: instances of the kernel, which run one after the other.
        settings: numbers of the target that are changed, such as {"sbuf.mib": "48"}.

    Returns:
        A kernel to `run` on arrays by name, and to `time` (a timeline; ns).

    Raises:
        InputError: there is no such file or function.
        CodegenError, VerificationError: the kernel cannot be read, or breaks one of the machine's
            laws; its author's line comes first.
    """
    kernels = reader("kernels")
    return kernels.trace(kernel, arguments, target or kernels.FIRST_TARGET, grid, settings)
