"""Libraries for other processors, run in an emulator, against onnxruntime."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tilesmith as ts
from tests.capabilities.c_library.c_libraries import emitted, recipe
from tests.compiler.model_builder import assert_close, expected, inputs_of, model_of, random
from tests.compiler.test_control import CASES, X
from tilesmith.codegen.host.machine import cpu_target
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target

HARNESS, SIZES = (Path(__file__).with_name(f"run_{what}.c") for what in ("library", "sizes"))
ARM, TRIPLE = "aarch64-linux-gnu", "aarch64-unknown-linux-gnu"
COMPILER, EMULATOR, ROOT = f"{ARM}-gcc", "qemu-aarch64", Path(f"/usr/{ARM}")

pytestmark = [
    pytest.mark.extra,
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR) and ROOT.is_dir()),
        reason=f"{COMPILER} or {EMULATOR} is not installed",
    ),
]

PRODUCT = model_of(
    "g (float[7, 33] x) => (float[7, 21] y) { m = MatMul(x, w) a = Add(m, b) y = Tanh(a) }",
    w=random(33, 21), b=random(21),
)  # fmt: skip
IMAGE = model_of(
    """g (float[1, 3, 17, 17] x) => (float[1, 10] y) {
        c = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(x, w) r = Relu(c)
        d = Conv<group=8, pads=[1, 1, 1, 1]>(r, v) p = MaxPool<kernel_shape=[2, 2]>(d)
        a = GlobalAveragePool(p) f = Flatten(a) m = Gemm(f, b) y = Softmax(m) }""",
    w=random(8, 3, 3, 3), v=random(8, 1, 3, 3), b=random(8, 10),
)  # fmt: skip
ATTENTION = model_of(
    """g (float[1, 19, 16] x, int64[3] i) => (float[1, 19, 16] y, float[3, 16] z) {
        q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)
        qh = Reshape(q, s) kh = Reshape(k, s) vh = Reshape(v, s)
        qt = Transpose<perm=[0, 2, 1, 3]>(qh) kt = Transpose<perm=[0, 2, 3, 1]>(kh)
        vt = Transpose<perm=[0, 2, 1, 3]>(vh) m = MatMul(qt, kt) n = Mul(m, c) p = Softmax(n)
        o = MatMul(p, vt) t = Transpose<perm=[0, 2, 1, 3]>(o) r = Reshape(t, u)
        e = LayerNormalization(r, g1, g2) y = Gelu(e) z = Gather(table, i) }""",
    20, wq=random(16, 16, seed=1), wk=random(16, 16, seed=2), wv=random(16, 16, seed=3),
    s=np.array([1, 19, 4, 4]), u=np.array([1, 19, 16]), c=np.array(0.5, np.float32),
    g1=random(16, seed=4), g2=random(16, seed=5), table=random(9, 16),
)  # fmt: skip


def run_in_emulator(
    model: onnx.ModelProto, inputs: dict[str, NDArray[Any]], folder: Path, **options: Any
) -> tuple[int, str, dict[str, NDArray[Any]]]:
    """Exit status, what it says, outputs."""
    request = options.pop("request", {})
    name = options.pop("target", "aarch64")
    target = cpu_target("arm", name, TRIPLE) if name == "sve256" else load_target(name)
    processor = options.pop("processor", "max,sve-max-vq=2")
    made = emitted(recipe(model, target, **options), folder / "model.a", kind="archive", **request)
    program = folder / "program"
    subprocess.run(
        [COMPILER, "-O1", f"-DMODEL={made.prefix}", "-include", made.header, str(HARNESS),
         made.path, "-o", str(program), "-lm", "-lpthread"],
        check=True,
    )  # fmt: skip
    graph = import_model(model)
    for name, value in inputs.items():
        (folder / f"{name}.in").write_bytes(value.tobytes())
    done = subprocess.run(
        [EMULATOR, "-cpu", processor, "-L", str(ROOT), str(program), made.weights or "",
         str(options.get("threads", 1)), "2",
         *(str(folder / f"{info.name}.in") for info in graph.inputs),
         *(str(folder / f"{info.name}.out") for info in graph.outputs)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {
        info.name: np.fromfile(folder / f"{info.name}.out", info.dtype).reshape(info.dims)
        for info in graph.outputs
        if done.returncode == 0
    }
    return done.returncode, done.stderr, found


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (PRODUCT, {}),
        (IMAGE, {"request": {"weights": "file"}}),
        (ATTENTION, {"threads": 2}),
        (PRODUCT, {"target": "sve256"}),
        (IMAGE, {"precision": "bf16"}),
        (PRODUCT, {"target": "neoverse_n1", "precision": "fp16"}),
    ],
    ids=["product", "image", "attention", "sve256", "bf16", "n1"],
)
def test_kernels_compute_what_onnxruntime_does(
    tmp_path: Path, model: onnx.ModelProto, options: dict[str, Any]
) -> None:
    inputs = inputs_of(import_model(model))
    status, said, found = run_in_emulator(model, inputs, tmp_path, **options)
    assert (status, said) == (0, "")
    assert_close(found, expected(model, inputs), 2e-2 if "precision" in options else 2e-5)


def test_loops_run_and_indices_are_checked(tmp_path: Path) -> None:
    text, inputs, weights = CASES[1]
    model, given = model_of(text, **weights), {"x": X, **inputs}
    status, said, found = run_in_emulator(model, given, tmp_path)
    assert (status, said) == (0, "")
    assert_close(found, expected(model, given))
    inputs = {**inputs_of(import_model(ATTENTION)), "i": np.array([0, 9, 1])}
    status, said, _ = run_in_emulator(ATTENTION, inputs, tmp_path)
    assert status == 1 and "takes index 9 of an axis with 9 entries; indices run from -9" in said


@pytest.mark.parametrize(
    "processor, lacking", [("cortex-a72", "sve"), ("max,sve-max-vq=4", "vectors of 32 bytes")]
)
def test_a_processor_without_what_it_needs_is_told_so(
    tmp_path: Path, processor: str, lacking: str
) -> None:
    """One without the instructions, and one whose registers have another length."""
    inputs = inputs_of(import_model(PRODUCT))
    status, said, _ = run_in_emulator(
        PRODUCT, inputs, tmp_path, target="sve256", processor=processor
    )
    sentence = "init: this processor lacks instructions that the library needs: "
    assert (status, said) == (1, f"{sentence}{lacking}\n")


def test_sizes_that_vary_are_set_elsewhere_too(tmp_path: Path) -> None:
    """Weights are packed here for kernels with extents that vary, and threads of the library's own
    run them."""
    model = model_of(
        "g (float[n, 33] x) => (float[n, 70] y) { m = MatMul(x, w) y = Softmax(m) }",
        w=random(33, 70),
    )
    made = ts.emit_library(
        model, tmp_path / "m.a", "aarch64", kind="archive", prefix="m", shapes={"n": (2, 9)},
        threads=2,
    )  # fmt: skip
    program = tmp_path / "main"
    command = [COMPILER, "-static", "-DMODEL=m", "-include", made.header, str(SIZES), made.path]
    subprocess.run([*command, "-o", str(program), "-lpthread", "-lm"], check=True)
    done = subprocess.run([EMULATOR, str(program)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    for line in lines:
        rows, *found = line.split()
        x = (np.arange(int(rows) * 33) % 13 / 8 - 1).astype(np.float32).reshape(-1, 33)
        got = np.array(found, np.float32).reshape(-1, 70)
        assert_close({"y": got}, expected(model, {"x": x}))
