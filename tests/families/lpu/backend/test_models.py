"""Whole models on an LPU-like chip: run burst by burst, against `onnx.reference`, and simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of, random
from tilesmith.command_line import command_line
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import HostStep
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.families.lpu.backend.programs.kernel_code import ChainKernelCode
from tilesmith.families.lpu.backend.programs.model import shown_times, spans
from tilesmith.families.lpu.backend.programs.program import ChipProgram, segments
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import ModelError

TARGET = load_target("lpu1")


def compared(model: onnx.ModelProto, tolerance: float, **inputs: np.ndarray) -> Executable:
    """Compile, run, and compare every output, errors relative to the largest value."""
    executable = build(import_model(model), TARGET)
    names = [output.name for output in model.graph.output]
    wanted = ReferenceEvaluator(model).run(None, inputs)
    got = executable.run(inputs)
    for name, want in zip(names, wanted, strict=True):
        assert got[name].shape == want.shape
        assert np.abs(got[name] - want).max() <= tolerance * max(1.0, np.abs(want).max())
    return executable


def perceptron() -> onnx.ModelProto:
    text = (
        "mlp (float[24, 400] x) => (float[24, 10] y) "
        "{ h = Gemm(x, w1, b1) r = Relu(h) g = Gemm(r, w2, b2) s = Relu(g) y = Gemm(s, w3, b3) }"
    )
    sizes = (400, 336, 64, 10)
    weights = {}
    for number, (k, n) in enumerate(pairwise(sizes), 1):
        weights |= {f"w{number}": random(k, n) / np.float32(k**0.5), f"b{number}": random(n)}
    return model_of(text, **weights)


def test_a_perceptron_runs_whole_on_the_chip_in_float16() -> None:
    executable = compared(perceptron(), 4e-3, x=random(24, 400))
    recipe = executable.recipe
    assert executable.report.precision == "fp16"
    assert not [step for step in recipe.steps if isinstance(step, HostStep)]
    played = backend_of(TARGET).simulate(recipe)
    shown = sum(op.details["shown_us"] for op in played.ops)
    assert shown == pytest.approx(played.latency_us)
    assert played.cycles == pytest.approx(played.latency_us * 900, abs=1)


def test_a_saved_model_is_the_same_program(tmp_path: Path) -> None:
    executable = build(import_model(perceptron()), TARGET)
    executable.save(tmp_path / "mlp.tsm")
    again = Executable.load(tmp_path / "mlp.tsm")
    backend = backend_of(TARGET)
    assert backend.simulate(again.recipe).cycles == backend.simulate(executable.recipe).cycles
    code = ChainKernelCode.from_bytes(executable.recipe.codes[0].code)
    assert ChainKernelCode.from_bytes(code.to_bytes()).to_bytes() == code.to_bytes()
    with pytest.raises(ModelError, match="compile again"):
        ChainKernelCode.from_bytes(b"other")


def test_images_go_from_block_to_block_and_are_turned_at_the_ends() -> None:
    text = (
        "cnn (float[1, 3, 8, 8] x) => (float[1, 16, 4, 4] y) "
        "{ h = Conv<pads=[1,1,1,1]>(x, w1, b1) r = Relu(h) "
        "  y = Conv<pads=[1,1,1,1], strides=[2,2]>(r, w2, b2) }"
    )
    weights = {"w1": random(24, 3, 3, 3), "b1": random(24)}
    weights |= {"w2": random(16, 24, 3, 3), "b2": random(16)}
    executable = compared(model_of(text, **weights), 4e-3, x=random(1, 3, 8, 8))
    assert executable.report.host == 0


def encoder_layer(rows: int, width: int, heads: int) -> onnx.ModelProto:
    """Attention over heads and a perceptron, both with what they started from added, normalised."""
    parts = [
        f"{n}a = MatMul(x, w{n}) {n}b = Add({n}a, b{n}) {n}c = Reshape({n}b, split) "
        f"{n} = Transpose<perm=[0,2,{order}]>({n}c) "
        for n, order in (("q", "1,3"), ("k", "3,1"), ("v", "1,3"))
    ]
    text = (
        f"encoder (float[1, {rows}, {width}] x) => (float[1, {rows}, {width}] y) {{ "
        f"{''.join(parts)} s = MatMul(q, k) t = Mul(s, scale) p = Softmax<axis=-1>(t) "
        "c = MatMul(p, v) ct = Transpose<perm=[0,2,1,3]>(c) cr = Reshape(ct, whole) "
        "o = MatMul(cr, wo) ob = Add(o, bo) r = Add(ob, x) n = LayerNormalization(r, g, e) "
        "f = MatMul(n, w1) fb = Add(f, b1) a = Relu(fb) h = MatMul(a, w2) hb = Add(h, b2) "
        "z = Add(hb, n) y = LayerNormalization(z, g, e) }"
    )
    size, root = width // heads, np.float32(width**0.5)
    weights = {f"w{n}": random(width, width) / root for n in "qkvo"}
    weights |= {"w1": random(width, 4 * width) / root, "w2": random(4 * width, width) / root / 2}
    weights |= {n: random(width) for n in ("bq", "bk", "bv", "bo", "b2", "g", "e")}
    weights |= {"b1": random(4 * width), "scale": np.array(size**-0.5, np.float32)}
    weights |= {"split": np.array([1, rows, heads, size]), "whole": np.array([1, rows, width])}
    return model_of(text, **weights)


def test_heads_become_rows_and_lanes_again_in_an_encoder_layer() -> None:
    executable = compared(encoder_layer(16, 64, 4), 4e-3, x=random(1, 16, 64))
    assert executable.report.host == 0
    assert backend_of(TARGET).simulate(executable.recipe).latency_us > 0


def decode_step(width: int, heads: int, shared: int, past: int) -> onnx.ModelProto:
    """One token of Llama's kind: caches of `shared` heads, positions turned, a gated perceptron."""
    size, inner, new = width // heads, 2 * width, past + 1

    def norm(x: str, y: str, scale: str) -> str:
        return (
            f"{y}2 = Mul({x}, {x}) {y}m = ReduceMean<axes=[-1]>({y}2) {y}a = Add({y}m, eps) "
            f"{y}s = Sqrt({y}a) {y}d = Div({x}, {y}s) {y} = Mul({y}d, {scale}) "
        )

    def turned(x: str, y: str) -> str:
        return (
            f"{y}l, {y}h = Split<axis=-1>({x}) {y}n = Neg({y}h) {y}r = Concat<axis=-1>({y}n, {y}l) "
            f"{y}x = Mul({x}, cos) {y}y = Mul({y}r, sin) {y} = Add({y}x, {y}y) "
        )

    def spread(x: str, y: str) -> str:
        return f"{y}v = Reshape({x}, kv1) {y}e = Expand({y}v, kvs) {y} = Reshape({y}e, all) "

    cache = f"float[1, {shared}, {past}, {size}]"
    grown = f"float[1, {shared}, {new}, {size}]"
    parts = "".join(
        f"{n}a = MatMul(n, w{n}) {n}b = Reshape({n}a, split{n}) "
        f"{n}c = Transpose<perm=[0,2,1,3]>({n}b) "
        for n in "qkv"
    )
    text = (
        f"llama (float[1, 1, {width}] x, {cache} pk, {cache} pv, float[1, 1, 1, {size}] cos, "
        f"float[1, 1, 1, {size}] sin) => (float[1, 1, {width}] y, {grown} nk, {grown} nv) {{ "
        f"{norm('x', 'n', 'g1')} {parts} {turned('qc', 'q')} {turned('kc', 'k')} "
        "nk = Concat<axis=2>(pk, k) nv = Concat<axis=2>(pv, vc) "
        f"{spread('nk', 'ks')} {spread('nv', 'vs')} kt = Transpose<perm=[0,1,3,2]>(ks) "
        "s = MatMul(q, kt) t = Mul(s, scale) p = Softmax<axis=-1>(t) c = MatMul(p, vs) "
        "ct = Transpose<perm=[0,2,1,3]>(c) cr = Reshape(ct, whole) o = MatMul(cr, wo) "
        f"r = Add(o, x) {norm('r', 'm', 'g2')} gate = MatMul(m, wg) sg = Sigmoid(gate) "
        "silu = Mul(gate, sg) u = MatMul(m, wu) f = Mul(silu, u) d = MatMul(f, wd) y = Add(d, r) }"
    )
    root, few = np.float32(width**0.5), shared * size
    extents = {"q": width, "k": few, "v": few, "o": width, "g": inner, "u": inner}
    weights = {f"w{n}": random(width, extent) / root for n, extent in extents.items()}
    weights |= {"wd": random(inner, width) / root, "g1": random(width), "g2": random(width)}
    weights |= {"scale": np.array(size**-0.5, np.float32), "eps": np.array(1e-5, np.float32)}
    shapes = {"splitq": [1, 1, heads, size], "splitk": [1, 1, shared, size], "whole": [1, 1, width]}
    shapes |= {"splitv": [1, 1, shared, size], "all": [1, heads, new, size]}
    shapes |= {"kv1": [1, shared, 1, new, size], "kvs": [1, shared, heads // shared, new, size]}
    return model_of(text, **weights, **{n: np.array(shape) for n, shape in shapes.items()})


@pytest.mark.parametrize(
    ("width", "heads", "shared", "past"), [(64, 4, 2, 15), (128, 8, 4, 64)], ids=["few", "many"]
)
def test_a_decode_step_runs_whole_with_its_caches(
    width: int, heads: int, shared: int, past: int
) -> None:
    """Keys of many heads are written by one chain, which needs slices for all of them at once."""
    cache = (1, shared, past, width // heads)
    angles = np.tile(random(8), 2).reshape(1, 1, 1, 16)
    inputs = {"x": random(1, 1, width), "pk": random(*cache), "pv": random(*cache)}
    inputs |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    executable = compared(decode_step(width, heads, shared, past), 4e-3, **inputs)
    assert executable.report.host == 0


def test_parts_may_be_the_caller_s_or_known() -> None:
    """Beside what a kernel made stand an input (channels) and weights (a first token)."""
    text = (
        "dense (float[1, 8, 6, 6] x) => (float[1, 12, 6, 6] y) "
        "{ a = Conv<pads=[1,1,1,1]>(x, w1) b = Relu(a) c = Concat<axis=1>(x, b) y = Conv(c, w2) }"
    )
    weights = {"w1": random(8, 8, 3, 3) / 8, "w2": random(12, 16, 1, 1) / 4}
    executable = compared(model_of(text, **weights), 4e-3, x=random(1, 8, 6, 6))
    assert executable.report.host == 0
    text = (
        "tokens (float[1, 16, 24] x) => (float[1, 17, 40] y) "
        "{ a = MatMul(x, w) b = Concat<axis=1>(first, a) y = Add(b, places) }"
    )
    weights = {"w": random(24, 40) / 5, "first": random(1, 1, 40), "places": random(1, 17, 40)}
    compared(model_of(text, **weights), 4e-3, x=random(1, 16, 24))


def test_convolutions_of_few_channels_one_after_another() -> None:
    steps = "".join(
        f"c{n} = Conv<pads=[1,1,1,1]>(r{n - 1}, w{n}) r{n} = Relu(c{n}) " for n in range(1, 4)
    )
    text = f"cnn (float[1, 16, 8, 8] r0) => (float[1, 16, 8, 8] r3) {{ {steps} }}"
    weights = {f"w{n}": random(16, 16, 3, 3, seed=n) / 12 for n in range(1, 4)}
    executable = compared(model_of(text, **weights), 4e-3, r0=random(1, 16, 8, 8))
    played = backend_of(TARGET).simulate(executable.recipe)
    assert sum(op.details["shown_us"] for op in played.ops) == pytest.approx(played.latency_us)


def test_words_that_many_chains_write_wait_for_who_reads_them() -> None:
    text = (
        "net (float[1, 8, 20, 12] x) => (float[1, 9, 20, 12] y) "
        "{ a = Conv<pads=[2,2,2,2], dilations=[2,2]>(x, w1) b = HardSwish(a) "
        "  c = Conv<pads=[0,1,0,1]>(b, w2) d = Tanh(c) e = Conv<group=3>(d, w3) y = Elu(e) }"
    )
    weights = {"w1": random(10, 8, 3, 3) / 8, "w2": random(9, 10, 1, 3) / 5}
    weights["w3"] = random(9, 3, 1, 1)
    compared(model_of(text, **weights), 4e-3, x=random(1, 8, 20, 12))


def test_reductions_run_whole_over_any_axes() -> None:
    text = (
        "sums (float[2, 12, 40] x) "
        "=> (float[2, 12] a, float[2, 40] b, float[2, 12, 1] c, float[1] d) { "
        "a = ReduceMean<axes=[-1], keepdims=0>(x) b = ReduceMax<axes=[1], keepdims=0>(x) "
        "  c = ReduceMin<axes=[2]>(x) e = ReduceMean<keepdims=0>(x) d = Reshape(e, one) }"
    )
    executable = compared(model_of(text, one=np.array([1])), 4e-3, x=random(2, 12, 40))
    assert executable.report.host == 0


def test_a_program_of_transfers_alone_takes_no_time() -> None:
    recipe = build(import_model(perceptron()), TARGET).recipe
    program = next(part for part in segments(recipe) if isinstance(part, ChipProgram))
    nothing = replace(program.schedule, table=program.schedule.table[:0])
    empty = replace(program, steps=(), joined=replace(program.joined, owners=()), schedule=nothing)
    assert shown_times(empty).shape == (0,)
    assert spans(empty) == []


def test_what_no_neighbour_can_take_over_runs_on_the_host() -> None:
    text = (
        "dequantised (float[1, 3, 16, 16] patches) => (float[1, 8, 16] y) "
        "{ q = QuantizeLinear(patches, s, z) d = DequantizeLinear(q, s, z) "
        "v = DequantizeLinear(w, s, z) c = Conv<strides=[4, 4]>(d, v) y = Reshape(c, shape) }"
    )
    given = {"s": np.float32(0.05), "z": np.int8(0), "shape": np.array([1, 8, 16], np.int64)}
    weights = np.random.default_rng(0).integers(-9, 9, (8, 3, 4, 4)).astype(np.int8)
    model = model_of(text, w=weights, **given)
    model.opset_import[0].version = 19  # the first that onnx.reference has
    executable = compared(model, 2e-2, patches=random(1, 3, 16, 16))
    assert backend_of(TARGET).simulate(executable.recipe).latency_us > 0


def test_host_nodes_read_what_fell_back_to_the_host_in_their_own_type() -> None:
    """Steps that are cut by sizes no chip can know: a kernel without a schedule, then the host."""
    text = (
        "steps (int64[1] n) => (float[m] y) { f = Cast<to=1>(n) g = Sub(f, one) s = Div(two, g) "
        "e = Squeeze(n) r = Range(zero, e, each) t = Cast<to=1>(r) y = Mul(t, s) }"
    )
    numbers = {"one": np.float32([1]), "two": np.float32([2])}
    model = model_of(text, **numbers, zero=np.int64(0), each=np.int64(1))
    executable = compared(model, 1e-6, n=np.array([7]))
    assert executable.run({"n": np.array([7])})["y"].dtype == np.float32


def test_a_model_that_does_not_fit_says_how_many_chips_would_do() -> None:
    """Three products of 320 x 320 where two, of 320 rows of float16 each, fit beside a few rows."""
    text = (
        "net (float[8, 320] x) => (float[8, 320] y) "
        "{ a = MatMul(x, w1) b = MatMul(a, w2) y = MatMul(b, w3) }"
    )
    graph = import_model(model_of(text, **{f"w{n}": random(320, 320, seed=n) for n in (1, 2, 3)}))
    words = -(-2 * (320 + 16) * 2 // (2 * TARGET.integer("mem.slices")))  # of both hemispheres
    words += words % 2
    with pytest.raises(ModelError, match=r"MiB more than the .* MiB of MEM .*; 2 chips would"):
        build(graph, TARGET.with_settings({"mem.words": str(words)}))


def test_targets_are_compared_in_one_table(tmp_path: Path) -> None:
    onnx.save(perceptron(), tmp_path / "mlp.onnx")
    asked = ["simulate", str(tmp_path / "mlp.onnx"), "--target", "trn1", "--target", "lpu1"]
    lines = CliRunner().invoke(command_line, asked).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["target", "trn1", "lpu1"]
    assert [line.split()[-1] for line in lines[1:]] == ["fp32", "fp16"]
    found = json.loads(CliRunner().invoke(command_line, [*asked, "--json"]).stdout)["targets"]
    assert [one["target"] for one in found] == ["trn1", "lpu1"]
    refused = CliRunner().invoke(command_line, [*asked[:2], "--target", "lp30"])
    assert refused.exit_code != 0


def test_a_chip_known_as_a_roofline_gives_that_of_models_and_says_what_it_has_not(
    tmp_path: Path,
) -> None:
    onnx.save(perceptron(), tmp_path / "mlp.onnx")
    asked = ["simulate", str(tmp_path / "mlp.onnx"), "--target", "lp30"]
    known = CliRunner().invoke(command_line, [*asked, "--fidelity", "roofline", "--json"])
    found = json.loads(known.stdout)
    assert len(found["ops"]) == 3
    assert found["latency_us"] > 0
    tuned = ["tune", "--op", "matmul m=8 n=8 k=8 dtype=float16", *asked[2:], "--trials", "1"]
    for wrong in (asked, [*tuned, "--database", str(tmp_path / "t.db")]):
        refused = CliRunner().invoke(command_line, wrong)
        assert refused.exit_code == 2
        assert "known as a roofline only" in refused.output
