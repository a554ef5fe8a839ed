"""fp32 models in bf16 and fp16 on CPUs: values, what stays float32, what is converted where."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import expected, inputs_of, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build, scheduled
from tilesmith.compiler.driver.verifier import verify
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.narrow_kernels import as_narrow, largest
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.workloads.workload import Workload

PRECISIONS = {"bf16": ("bfloat16", 2e-2), "fp16": ("float16", 3e-3)}
BOTH = pytest.mark.parametrize("precision", PRECISIONS)

LAYERS = """agraph (float[2,12,32] x) => (float[2,12,32] y)
{ h = MatMul(x, w) g = Mul(h, half) s = Softmax(g)
  n = LayerNormalization<axis=-1, epsilon=1e-6>(s, scale, bias)
  v = MatMul(n, w) y = Add(v, x) }"""
IMAGE = """agraph (float[1,3,16,16] x) => (float[1,10] y)
{ c = Conv<pads=[1,1,1,1]>(x, first) r = Relu(c) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
  d = Conv<group=16, pads=[1,1,1,1]>(p, deep) e = Conv(d, point) a = Add(e, p)
  g = GlobalAveragePool(a) f = Flatten(g) y = Gemm(f, last) }"""
MASKED = """agraph (float[1,2,8,16] q, float[1,2,8,16] k, float[1,2,8,16] v, int64[1,8] m)
 => (float[1,2,8,16] y)
{ f = Cast<to=1>(m) o = Sub(one, f) l = Mul(o, low) a = Unsqueeze(l, axes)
  t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) z = Add(s, a) p = Softmax(z)
  y = MatMul(p, v) }"""
LOW = float(np.finfo(np.float32).min)


def layers() -> onnx.ModelProto:
    w, scale, bias = random(32, 32) / 6, random(32) + 2, random(32)
    return model_of(LAYERS, w=w, scale=scale, bias=bias, half=np.float32(0.5))


def image() -> onnx.ModelProto:
    return model_of(
        IMAGE, first=random(16, 3, 3, 3) / 5, deep=random(16, 1, 3, 3) / 3,
        point=random(16, 16, 1, 1) / 4, last=random(16, 10),
    )  # fmt: skip


def compiled(model: onnx.ModelProto, precision: str) -> Executable:
    return build(import_model(model), host_target(), options=BuildOptions(precision=precision))


def lowered(model: onnx.ModelProto, precision: str) -> Graph:
    graph = scheduled(import_model(model), host_target(), precision)
    verify(graph)
    return graph


def workloads(graph: Graph) -> list[Workload]:
    return [node.workload for node in graph.nodes if node.workload is not None]


def check(
    model: onnx.ModelProto, precision: str, given: dict[str, Any] | None = None
) -> Executable:
    """Values, the largest taken as one, and what the caller sees."""
    lowered(model, precision)
    executable = compiled(model, precision)
    given = inputs_of(import_model(model)) if given is None else given
    found, wanted = executable.run(given), expected(model, given)
    for name, value in wanted.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        error = np.abs(found[name] - value).max() / np.abs(value).max()
        assert error <= PRECISIONS[precision][1], (name, error)
    return executable


@BOTH
@pytest.mark.parametrize("model", [layers, image])
def test_models_agree_with_fp32(model: Any, precision: str, tmp_path: Path) -> None:
    executable = check(model(), precision)
    wide = compiled(model(), "fp32")
    assert executable.report.precision == precision and wide.report.precision == "fp32"
    assert executable.report.constant_bytes < 0.6 * wide.report.constant_bytes
    executable.save(tmp_path / "model.tsm")
    again = Executable.load(tmp_path / "model.tsm")
    given = inputs_of(import_model(model()))
    for name, value in executable.run(given).items():
        np.testing.assert_array_equal(again.run(given)[name], value)


@BOTH
@pytest.mark.parametrize("used", [[1] * 8, [1, 1, 1, 0, 0, 0, 0, 0], [0] * 8])
def test_masks_of_the_least_number_are_no_infinities(used: list[int], precision: str) -> None:
    """Where everything is masked, every key counts alike, as in fp32."""
    model = model_of(
        MASKED, one=np.float32(1), low=np.float32(LOW), axes=np.array([1, 2], np.int64)
    )
    shape = (1, 2, 8, 16)
    given: dict[str, Any] = {name: random(*shape, seed=i) for i, name in enumerate("qkv")}
    check(model, precision, {**given, "m": np.array([used], np.int64)})


@BOTH
def test_a_mask_of_the_caller_s_and_one_in_the_file(precision: str) -> None:
    text = """agraph (float[4,8] x, float[4,8] m) => (float[4,8] y)
    { a = Add(x, m) b = Add(a, n) s = Softmax(b) y = MatMul(s, w) }"""
    low = np.where(np.eye(4, 8) > 0, np.float32(LOW / 2), np.float32(0))
    model = model_of(text, n=low[::-1].copy(), w=random(8, 8))
    check(model, precision, {"x": random(4, 8), "m": low})


@BOTH
def test_host_nodes_see_float32(precision: str) -> None:
    text = """agraph (float[8,8] x) => (float[8,8] y)
    { a = MatMul(x, w) d = Det(a) e = Det(x) f = Add(d, e) g = Unsqueeze(f, z) b = MatMul(a, w)
      h = Mul(g, tiny) y = Add(b, h) }"""
    zero, tiny = np.array([0], np.int64), np.float32(1e-9)
    model = model_of(text, w=random(8, 8) / 3, z=zero, tiny=tiny)
    executable = check(model, precision)
    assert executable.report.host == 2


def test_whole_numbers_are_not_rounded_on_their_way() -> None:
    """Positions up to 1000 have no bfloat16 of their own; their angles stay float32."""
    text = """agraph (int64[1,40] p, float[40,16] x) => (float[40,16] y)
    { f = Cast<to=1>(p) t = Transpose<perm=[1,0]>(f) a = MatMul(t, step) c = Cos(a) h = MatMul(x, w)
      y = Mul(h, c) }"""
    step = 10000.0 ** -np.linspace(0, 1, 16, dtype=np.float32)[None]
    model = model_of(text, step=step, w=np.eye(16, dtype=np.float32))
    given = {"p": np.arange(961, 1001)[None], "x": random(40, 16)}
    check(model, "bf16", given)
    kernels = workloads(lowered(model, "bf16"))
    assert [w.dtype for w in kernels if "cos" in str(w)] == ["float32"]
    assert [w.dtype for w in kernels if w.operator == "matmul" and "k=16" in w.key] == ["bfloat16"]


@BOTH
def test_kernels_read_whole_numbers_beside_narrow_ones(precision: str) -> None:
    text = """agraph (float[4,16] x, bool[4,16] c) => (float[4,16] y)
    { h = MatMul(x, w) m = Where(c, h, low) a = MatMul(m, w) y = Add(a, x) }"""
    model = model_of(text, w=random(16, 16) / 4, low=random(16))
    given = {"x": random(4, 16), "c": np.arange(64).reshape(4, 16) % 3 > 0}
    check(model, precision, given)


@BOTH
def test_what_joins_and_views_make_is_converted_once(precision: str) -> None:
    text = """agraph (float[2,8] x) => (float[4,8] y, float[2,16] v, float[16] f)
    { a = MatMul(x, w) b = Relu(x) y = Concat<axis=0>(a, b) v = Concat<axis=1>(a, x)
      f = Reshape(a, n) }"""
    model = model_of(text, w=random(8, 8), n=np.array([16], np.int64))
    check(model, precision)


@BOTH
def test_a_cache_stays_what_the_caller_has(precision: str) -> None:
    """Keys of the caller's are not copied to be narrow: attention over them stays float32."""
    text = """agraph (float[1,2,1,16] x, float[1,2,63,16] past) => (float[1,2,1,16] y,
     float[1,2,64,16] now)
    { k = MatMul(x, w) now = Concat<axis=2>(past, k) t = Transpose<perm=[0,1,3,2]>(now)
      s = MatMul(x, t) p = Softmax(s) o = MatMul(p, now) y = MatMul(o, w) }"""
    model = model_of(text, w=random(16, 16) / 4)
    check(model, precision)
    graph = lowered(model, precision)
    narrowed = [
        w for w in workloads(graph)
        if w.operator == "elementwise" and w.dtype != "float32" and "1x2x64" in w.key
    ]  # fmt: skip
    assert not narrowed


@BOTH
def test_ranges_of_sizes_are_one_artifact(precision: str) -> None:
    import tilesmith as ts

    text = """agraph (float[s,16] x) => (float[s,16] y)
    { h = MatMul(x, w) g = Relu(h) m = MatMul(g, w) y = Softmax(m) }"""
    model = model_of(text, w=random(16, 16) / 4)
    executable = ts.compile(model, shapes={"s": (1, 64)}, precision=precision)
    for size in (1, 17, 64):
        x = random(size, 16)
        wanted = expected(model, {"x": x})["y"]
        np.testing.assert_allclose(executable.run({"x": x})["y"], wanted, atol=3e-2)


def test_finite_numbers_that_are_too_large_become_the_largest() -> None:
    x = np.array([LOW, -1e9, 1.0, 1e30, np.nan, -np.inf, np.inf, 65519.0], np.float32)
    halves = as_narrow(x, "float16").astype(np.float32)
    most = largest("float16")
    np.testing.assert_array_equal(halves, [-most, -most, 1, most, np.nan, -np.inf, np.inf, most])
    assert most == float(ml_dtypes.finfo(np.float16).max)
    brains = as_narrow(x, "bfloat16")
    most = largest("bfloat16")
    assert most == float(ml_dtypes.finfo(brains.dtype).max)
    rounded = x.astype(brains.dtype).astype(np.float32)
    np.testing.assert_array_equal(brains[1:].astype(np.float32), rounded[1:])
    assert brains[0] == -most and as_narrow(np.float32(LOW)[...], "bfloat16") == -most


@BOTH
def test_infinities_pass_through(precision: str) -> None:
    """Those of the caller's, of the file and of a kernel's own, and what is no number."""
    text = """agraph (float[6,8] x) => (float[6,8] y, float[6,8] z, float[6,8] u)
    { a = MatMul(x, w) b = Relu(a) y = Add(b, x) z = Mul(a, n) e = Exp(x) u = Neg(e) }"""
    ends = np.ones((6, 8), np.float32)
    ends[0, 0], ends[5, 7] = np.inf, -np.inf
    model = model_of(text, w=np.eye(8, dtype=np.float32) + np.float32(0.25), n=ends)
    x = random(6, 8)
    x[1, 1], x[2, 2], x[3, 3], x[4, 4] = np.inf, -np.inf, np.nan, 100
    assert_alike(compiled(model, precision).run({"x": x}), referred(model, {"x": x}), precision)


HEADS = """agraph (float[1,12,32] x{0}) => (float[1,2,12,16] y)
{{ h = MatMul(x, w) r = Reshape(h, shape) t = Transpose<perm=[2,0,3,1,4]>(r)
  a, b, c = Split<axis=0, num_outputs=3>(t)
  q = Squeeze(a, first) k = Squeeze(b, first) v = Squeeze(c, first)
  kt = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, kt) {1}
  p = Softmax(z) y = MatMul(p, v) }}"""
MASKS = {
    "input": (", float[1,1,12,12] mask", "z = Add(s, mask)"),
    "weight": ("", "z = Add(s, mask)"),
    "chosen": (", bool[1,1,12,12] used", "z = Where(used, s, infinite)"),
    "made": (
        ", bool[1,1,12,12] used",
        "m = Where(used, zero, infinite) z = Add(s, m)",
    ),
}


@BOTH
@pytest.mark.parametrize("kind", MASKS)
def test_a_row_that_is_masked_by_infinities_is_no_number(kind: str, precision: str) -> None:
    """As in the reference; a row of which one key is left is that key's value."""
    used = np.tril(np.ones((12, 12), np.bool_))
    used[5] = False
    mask = np.where(used, np.float32(0), np.float32(-np.inf))[None, None]
    inputs, node = MASKS[kind]
    weights: dict[str, Any] = {
        "w": random(32, 96) / 6, "shape": np.array([1, 12, 3, 2, 16]), "first": np.array([0]),
        "infinite": np.float32(-np.inf), "zero": np.float32(0),
    }  # fmt: skip
    if kind == "weight":
        weights["mask"] = mask
    model = model_of(HEADS.format(inputs, node), 18, **weights)
    given: dict[str, Any] = {"x": random(1, 12, 32)}
    given |= {"mask": mask} if "mask" in inputs else {}
    given |= {"used": used[None, None]} if "used" in inputs else {}
    wanted = referred(model, given)
    assert np.isnan(wanted["y"][:, :, 5]).all() and np.isfinite(wanted["y"][:, :, 6]).all()
    assert_alike(compiled(model, precision).run(given), wanted, precision)


def referred(model: onnx.ModelProto, given: dict[str, Any]) -> dict[str, Any]:
    """What ONNX's reference computes in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # infinities and what they come to
        values = ReferenceEvaluator(model).run(None, given)
    return {info.name: value for info, value in zip(model.graph.output, values, strict=True)}


def assert_alike(found: dict[str, Any], wanted: dict[str, Any], precision: str) -> None:
    """What is infinite or no number in the same places, the rest within the precision."""
    for name, value in wanted.items():
        rest = np.isfinite(value)
        np.testing.assert_array_equal(found[name][~rest], value[~rest], name)
        most = PRECISIONS[precision][1] * np.abs(value[rest]).max()
        np.testing.assert_allclose(found[name][rest], value[rest], rtol=0, atol=most)


def test_no_such_precision() -> None:
    with pytest.raises(ModelError, match="unknown precision 'fp8'"):
        compiled(layers(), "fp8")
