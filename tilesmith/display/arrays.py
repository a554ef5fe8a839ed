"""Arrays in and out of files: `.npy` and `.npz`; what to print of an array."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import ending, written


def read_arrays(named: Sequence[tuple[str, str]]) -> dict[str, NDArray[Any]]:
    """Arrays by input name from (name, path) pairs.

    Raises:
        InputError: a name is given twice, or a file is missing or no array in numpy's format
            (arrays of Python objects are refused, as reading one would run code).
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, path in named:
        if name in arrays:
            raise InputError(f"input '{name}' is given twice")
        try:
            array = np.load(ending(Path(path)), allow_pickle=False)
        except OSError as error:
            raise InputError(
                f"input '{name}': '{path}' cannot be read: {error.strerror or error}"
            ) from error
        except (ValueError, EOFError) as error:
            raise InputError(
                f"input '{name}': '{path}' is not a .npy file of plain numbers"
            ) from error
        if not isinstance(array, np.ndarray):
            raise InputError(
                f"input '{name}': '{path}' holds several arrays; save one with numpy.save"
            )
        arrays[name] = array
    return arrays


def check_array_file(path: Path, names: Sequence[str]) -> None:
    """Refuse a file's name that does not fit what is to be written, before anything is run.

    Raises:
        InputError: neither `.npy` nor `.npz`; `.npy`, and there is not one array.
    """
    if path.suffix not in (".npy", ".npz", ""):
        raise InputError(
            f"'{path}' ends in '{path.suffix}', which is not written; arrays go to .npy (one) or "
            ".npz (any number, by name)"
        )
    if path.suffix == ".npy" and len(names) != 1:
        raise InputError(
            f"'{path}' would hold one array, and the model has {len(names)} outputs "
            f"({', '.join(names)}); name a file that ends in .npz, which holds all of them by name"
        )


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays at exactly `path`: one that ends in `.npy` as numpy's own format, else `.npz`.

    As `numpy.savez`, which takes no array named `file`.

    Raises:
        InputError: as `check_array_file`.
    """
    check_array_file(path, list(arrays))
    if path.suffix == ".npy":
        (array,) = arrays.values()
        with written(path) as file:
            np.lib.format.write_array(file, array, allow_pickle=False)
        return
    with written(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def summary_of(array: NDArray[Any]) -> dict[str, Any]:
    """Shape, dtype and, of numbers, minimum, maximum and mean (of flags: 0, 1 and their share)."""
    described: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype)}
    numeric = array.size > 0 and array.dtype.kind not in "OSU"
    wide = array.astype(np.float64) if numeric else None
    described["minimum"] = None if wide is None else float(wide.min())
    described["maximum"] = None if wide is None else float(wide.max())
    described["mean"] = None if wide is None else float(wide.mean())
    return described
