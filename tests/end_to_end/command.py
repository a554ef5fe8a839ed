"""Calling the command line as scripts do, in this process or in one of its own."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from tilesmith.command_line import command_line

SMALL = "matmul m=16 n=32 k=8 const=b"
TUNE = ("--measure", "hardware", "--trials", "2")
SEARCH = ("--measure", "simulator", "--trials", "16")
"""Enough trials for a search of one workload."""

Dims = Sequence[int | str]


def invoke(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(command_line, [str(a) for a in arguments])


def succeed(*arguments: str | Path | int) -> Any:
    """Run with --json; the one object on stdout."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refuse(*arguments: str | Path, code: int = 2) -> str:
    """Run what must fail: the one sentence it says."""
    result = invoke(*arguments)
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    assert "Traceback" not in result.stderr
    assert "internal error" not in result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    sentence = lines[0]
    assert sentence.startswith("tilesmith: ")
    return sentence


def save_model(
    path: Path, shape: Dims | None = (4, 8), dtype: int = TensorProto.FLOAT, opset: int = 17
) -> Path:
    """relu(x w) with a constant (8, 6) weight."""
    weight = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(weight.astype(helper.tensor_dtype_to_np_dtype(dtype)), "w")],
    )
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return path


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tilesmith", *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, **options}
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, **options)


def trials_in(database: Path) -> int:
    """Trials committed so far, asked of SQLite itself."""
    if not database.exists():
        return 0
    try:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        (count,) = connection.execute("select count(*) from trials").fetchone()
        connection.close()
    except sqlite3.OperationalError:
        return 0
    return int(count)
