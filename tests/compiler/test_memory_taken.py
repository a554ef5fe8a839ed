"""What a process takes of memory to compile a model, and to load it: no second copy of weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.model_builder import model_of

_SIZE, _LAYERS = 1024, 10  # 42 MB

_SCRIPT = """
import sys, numpy as np, onnx
import tilesmith as ts

def taken(field):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024

graph = onnx.parser.parse_graph("g (float[4, 64] x) => (float[4, 64] y) { y = MatMul(x, w) }")
graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w"))
opsets = [onnx.helper.make_opsetid("", 17)]
tiny = ts.compile(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))
tiny(np.ones((4, 64), np.float32))
file, artifact, precision = sys.argv[1:]
before = taken("VmHWM")
ts.compile(file, precision=precision).save(artifact)
compiled = taken("VmHWM") - before
before = taken("RssAnon")
model = ts.load(artifact)
model(np.ones((4, %d), np.float32))
print(compiled, taken("RssAnon") - before, model.report.constant_bytes)
"""


@pytest.mark.parametrize(("precision", "part", "most"), [("fp32", 1.0, 2.0), ("bf16", 0.5, 1.5)])
def test_weights_are_in_memory_once(
    precision: str, part: float, most: float, tmp_path: Path
) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("the system does not tell what memory is taken")
    rng = np.random.default_rng(0)
    names = [f"w{i}" for i in range(_LAYERS)]
    weights = {n: rng.standard_normal((_SIZE, _SIZE)).astype(np.float32) / 32 for n in names}
    lines = " ".join(f"a{i + 1} = MatMul(a{i}, w{i})" for i in range(_LAYERS))
    ends = f"(float[4, {_SIZE}] a0) => (float[4, {_SIZE}] a{_LAYERS})"
    file = tmp_path / "m.onnx"
    file.write_bytes(model_of(f"g {ends} {{ {lines} }}", **weights).SerializeToString())
    arguments = [
        sys.executable,
        "-c",
        _SCRIPT % _SIZE,
        str(file),
        str(tmp_path / "m.tsm"),
        precision,
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    compiled, loaded, packed = map(int, done.stdout.split())
    own = sum(array.nbytes for array in weights.values())
    assert packed <= 1.05 * part * own
    assert compiled <= most * own
    assert loaded <= 0.25 * own  # the rest are the file's pages


_LONG = """
import onnx
from tilesmith.compiler.onnx.importer import import_model

model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    g (float[8388608] x, bool c) => (float[8388608] y) { y = If(c)
        <then_branch = t () => (float[N] a) { a = Cast<to=1>(x) },
         else_branch = e () => (float[N] b) { b = Neg(x) }> }''')
import_model(model)
line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(line.split()[1]) * 1024)
"""


def test_elements_of_a_long_vector_are_not_followed() -> None:
    """ONNX's inference of bodies kept 140 bytes for each, 1.2 GB here."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the system does not tell what memory is taken")
    run = subprocess.run([sys.executable, "-c", _LONG], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 800e6
