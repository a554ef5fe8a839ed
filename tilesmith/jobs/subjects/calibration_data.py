"""Calibration data: arrays in memory or in files become samples of a model's inputs.

One sample is an array of an input's shape. An array with one axis more in front holds as many
samples as that axis is long; one whose first axis is a multiple of the input's first holds
as many as it goes into it; where the input's first axis may have any length, each row is a sample.
Axes of any length take the data's. Invariant: every sample holds every input.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import ending
from tilesmith.search_space.workloads.workload import shape_text

Arrays = Mapping[str, NDArray[Any]]
Data = str | Path | NDArray[Any] | Arrays | Sequence[Any]
"""A file or folder; an array of a model's only input; arrays by input; or several of these."""

_SUFFIXES = (".npy", ".npz")


@dataclass(frozen=True)
class ExpectedInput:
    """An input of a model.

    Attributes:
        dims: an extent for each axis, None where it may have any length; None: any shape.
        dtype: numpy's.
    """

    name: str
    dims: tuple[int | None, ...] | None
    dtype: np.dtype[Any]

    def split(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        """The samples in an array; `InputError` if it does not fit."""
        array = self._typed(array)
        if self.dims is None:
            return [array]
        if array.ndim and self._fits(array.shape[1:]):
            return [np.asarray(part) for part in array]
        if array.ndim and array.ndim == len(self.dims) and self._fits_behind(array.shape):
            rows = self.dims[0] or 1
            if array.shape[0] % rows == 0:
                return np.split(array, array.shape[0] // rows) if array.shape[0] else []
        if self._fits(array.shape):
            return [array]
        shape = "x".join("?" if extent is None else str(extent) for extent in self.dims)
        raise InputError(
            f"calibration data for input '{self.name}' has the shape {shape_text(array.shape)}; "
            f"{shape or 'a single number'} is expected, or that with the samples as one axis more "
            "in front"
        )

    def _fits(self, shape: tuple[int, ...]) -> bool:
        assert self.dims is not None
        pairs = zip(self.dims, shape, strict=False)
        return len(shape) == len(self.dims) and all(e in (None, extent) for e, extent in pairs)

    def _fits_behind(self, shape: tuple[int, ...]) -> bool:
        assert self.dims is not None
        return all(e in (None, n) for e, n in zip(self.dims[1:], shape[1:], strict=True))

    def _typed(self, array: NDArray[Any]) -> NDArray[Any]:
        if array.dtype == self.dtype:
            return array
        if array.dtype.kind == self.dtype.kind or {array.dtype.kind, self.dtype.kind} == set("iu"):
            return array.astype(self.dtype)
        raise InputError(
            f"calibration data for input '{self.name}' is of dtype {array.dtype}; {self.dtype} is "
            "expected, prepared as the model is used"
        )


def expected_inputs(
    inputs: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[Any]]
) -> tuple[ExpectedInput, ...]:
    """A model's inputs.

    Args:
        shapes: of inputs by name, or sizes of symbolic dimensions by theirs.

    Raises:
        InputError: a symbolic dimension is given more than one size.
    """
    expected = []
    for value in inputs:
        kind = value.type.tensor_type
        dims: tuple[int | None, ...] | None = None
        if kind.HasField("shape"):
            dims = tuple(_extent(dim, shapes) for dim in kind.shape.dim)
        if value.name in shapes:
            dims = tuple(shapes[value.name])
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        expected.append(ExpectedInput(value.name, dims, np.dtype(dtype)))
    return tuple(expected)


def _extent(dim: Any, shapes: Mapping[str, Sequence[Any]]) -> int | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    if dim.dim_param not in shapes:
        return None
    match tuple(shapes[dim.dim_param]):
        case (int(extent),):
            return extent
        case said:
            raise InputError(
                f"'{dim.dim_param}' is one symbolic dimension and is given as {said!r}; one size "
                "is expected where a model is quantised"
            )


def random_samples(inputs: Sequence[ExpectedInput], count: int, seed: int) -> list[Arrays]:
    """Seeded random samples, to try things: normal numbers, zeros and ones.

    Raises:
        InputError: an input may have any shape.
    """
    rng = np.random.default_rng(seed)
    drawn: list[Arrays] = []
    for one in inputs:
        if one.dims is None or None in one.dims:
            raise InputError(
                f"input '{one.name}' may have several shapes; give it one for random data, such as "
                f"--shape {one.name}=1x3x224x224"
            )

    for _ in range(count):
        sample = {}
        for one in inputs:
            dims = tuple(extent or 0 for extent in one.dims or ())
            floats = one.dtype.kind == "f"
            values = rng.normal(size=dims) if floats else rng.integers(0, 2, dims)
            sample[one.name] = np.asarray(values, one.dtype)
        drawn.append(sample)
    return drawn


def samples_of(inputs: Sequence[ExpectedInput], data: Data) -> list[Arrays]:
    """Samples in data, whatever form it has.

    Raises:
        InputError: a file cannot be read, an input is missing or unknown, a shape or dtype does
            not fit, inputs have different numbers of samples, or there are none.
    """
    samples = [sample for arrays in _read(inputs, data) for sample in _split(inputs, arrays)]
    if not samples:
        raise InputError("the calibration data holds no sample; give arrays of the model's inputs")
    return samples


def _split(inputs: Sequence[ExpectedInput], arrays: Arrays) -> list[Arrays]:
    known = {one.name: one for one in inputs}
    names = ", ".join(known)
    if unknown := [name for name in arrays if name not in known]:
        raise InputError(
            f"the calibration data holds '{unknown[0]}', and the model has no such input; its "
            f"inputs are {names}"
        )
    if missing := [name for name in known if name not in arrays]:
        raise InputError(f"the calibration data lacks the input '{missing[0]}'; it takes {names}")
    parts = {name: one.split(np.asarray(arrays[name])) for name, one in known.items()}
    counts = {name: len(part) for name, part in parts.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
        raise InputError(f"the calibration data holds {said}; as many of each are expected")
    rows = zip(*parts.values(), strict=True)
    return [dict(zip(parts, row, strict=True)) for row in rows]


def _read(inputs: Sequence[ExpectedInput], data: Data) -> Iterable[Arrays]:
    if isinstance(data, str | Path):
        return _read_path(inputs, Path(data))
    if isinstance(data, np.ndarray):
        return [{_only(inputs, "the array"): data}]
    if isinstance(data, Mapping):
        return [data]
    return [arrays for part in data for arrays in _read(inputs, part)]


def _read_path(inputs: Sequence[ExpectedInput], path: Path) -> list[Arrays]:
    if not path.exists():
        raise InputError(f"calibration data '{path}' does not exist")
    if not path.is_dir():
        return [_read_file(inputs, path)]
    files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    if not files:
        raise InputError(f"the folder '{path}' of calibration data holds no .npy or .npz file")
    names = {one.name for one in inputs}
    by_input = {file.stem: file for file in files if file.suffix == ".npy" and file.stem in names}
    if by_input:
        whole = {name: _array(file) for name, file in by_input.items()}
        rest = [file for file in files if file not in by_input.values()]
        return [whole, *(_read_file(inputs, file) for file in rest)]
    return [_read_file(inputs, file) for file in files]


def _read_file(inputs: Sequence[ExpectedInput], path: Path) -> Arrays:
    if path.suffix == ".npz":
        with _loaded(path) as archive:
            return {name: _member(archive, name, path) for name in archive.files}
    return {_only(inputs, f"'{path}'"): _array(path)}


def _array(path: Path) -> NDArray[Any]:
    array = _loaded(path)
    if not isinstance(array, np.ndarray):
        raise InputError(f"calibration data '{path}' holds several arrays; name it .npz")
    return array


def _loaded(path: Path) -> Any:
    try:
        return np.load(ending(path), allow_pickle=False)
    except OSError as error:
        raise InputError(
            f"calibration data '{path}' cannot be read: {error.strerror or error}"
        ) from error
    except (ValueError, EOFError) as error:
        raise InputError(
            f"calibration data '{path}' is not a .npy or .npz file of plain numbers"
        ) from error


def _member(archive: Any, name: str, path: Path) -> NDArray[Any]:
    try:
        return np.asarray(archive[name])
    except Exception as error:  # a damaged archive raises whatever zipfile and numpy have
        raise InputError(
            f"calibration data '{path}' is not a .npz file of plain numbers: '{name}' cannot be "
            "read"
        ) from error


def _only(inputs: Sequence[ExpectedInput], what: str) -> str:
    if len(inputs) != 1:
        names = ", ".join(one.name for one in inputs)
        raise InputError(
            f"{what} is one array, and the model has the inputs {names}; save them by name with "
            "numpy.savez"
        )
    return inputs[0].name
