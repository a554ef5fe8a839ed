"""Arrays in and out of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tilesmith.display.arrays import write_arrays


def test_arrays_of_any_name_are_written(tmp_path: Path) -> None:
    """`file` is a parameter of `numpy.savez`; slashes are common in exported models."""
    arrays = {
        "file": np.arange(6.0).reshape(2, 3), "/model/out": np.array(7), "allow_pickle": np.eye(2),
        "flags": np.array([], dtype=bool),
    }  # fmt: skip
    write_arrays(tmp_path / "out", arrays)
    with np.load(tmp_path / "out") as found:
        assert set(found.files) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype
