"""Small models whose sizes vary, each for one thing that sizes do to a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tests.compiler.model_builder import model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import Schedules
from tilesmith.compiler.onnx.files.file import read_model
from tilesmith.compiler.varying.build import build_varying
from tilesmith.compiler.varying.executable import VaryingExecutable
from tilesmith.compiler.varying.sizes.declared import declared_by


def compiled(model: onnx.ModelProto, shapes: Any) -> VaryingExecutable:
    """The model for ranges of its sizes, with default schedules."""
    file = read_model(model)
    recipe = build_varying(file, declared_by(file, shapes), Schedules(host_target()))
    return VaryingExecutable(recipe)


@dataclass(frozen=True)
class Case:
    """A model, its ranges, and inputs at any sizes."""

    model: onnx.ModelProto
    shapes: dict[str, Any]
    integers: int = 0
    """Inputs are whole numbers below this."""

    def inputs(self, sizes: dict[str, int]) -> dict[str, Any]:
        rng = np.random.default_rng(sum(sizes.values()))
        found: dict[str, Any] = {}
        for value in self.model.graph.input:
            dims = [
                eval(d.dim_param, {}, sizes) if d.dim_param else d.dim_value
                for d in value.type.tensor_type.shape.dim
            ]
            if self.integers:
                found[value.name] = rng.integers(0, self.integers, dims)
            else:
                found[value.name] = rng.standard_normal(dims).astype(np.float32)
        return found


def attention() -> Case:
    """Heads, a causal mask and positions, all of them by arithmetic of shapes."""
    text = """
    attention (int64[b, s] ids) => (float[b, s, 7] y)
    <float[7, 8] table, float[40, 8] places, float[8, 8] wq, float[8, 8] wk, float[8, 7] wo,
     int64[1] zero = {0}, int64[1] one = {1}, int64 none = {0}, int64 step = {1},
     int64[2] heads = {2, 4}, int64[1] width = {8}, float low = {-10000.0}, float nothing = {0.0}>
    {
        embedded = Gather(table, ids)
        shape = Shape(ids)
        batch = Slice(shape, zero, one)
        length = Shape<start=1>(ids)
        count = Squeeze(length)
        order = Range(none, count, step)
        place = Gather(places, order)
        x = Add(embedded, place)
        q0 = MatMul(x, wq)
        k0 = MatMul(x, wk)
        split = Concat<axis=0>(batch, length, heads)
        q1 = Reshape(q0, split)
        k1 = Reshape(k0, split)
        q = Transpose<perm=[0, 2, 1, 3]>(q1)
        kt = Transpose<perm=[0, 2, 3, 1]>(k1)
        v = Transpose<perm=[0, 2, 1, 3]>(k1)
        scores = MatMul(q, kt)
        row = Unsqueeze(order, one)
        late = Greater(order, row)
        mask = Where(late, low, nothing)
        masked = Add(scores, mask)
        p = Softmax<axis=-1>(masked)
        mixed = MatMul(p, v)
        back = Transpose<perm=[0, 2, 1, 3]>(mixed)
        whole = Concat<axis=0>(batch, length, width)
        joined = Reshape(back, whole)
        y = MatMul(joined, wo)
    }"""
    model = model_of(
        text, 17, table=random(7, 8), places=random(40, 8), wq=random(8, 8), wk=random(8, 8),
        wo=random(8, 7),
    )  # fmt: skip
    return Case(model, {"b": (2, 6), "s": (1, 40)}, integers=7)


def windows() -> Case:
    """Strided windows: extents are quotients, and quotients of those."""
    text = """
    windows (float[b, 3, h, w] x) => (float[b, 5] y, float[b, 5, u, v] z)
    <float[4] scales = {1, 1, 2, 2}>
    {
        a = Conv<strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3]>(x, first)
        r = Relu(a)
        p = MaxPool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(r)
        c = Conv<strides=[1, 1], pads=[1, 1, 1, 1], kernel_shape=[3, 3]>(p, second)
        z = Resize<mode="nearest", coordinate_transformation_mode="asymmetric",
                   nearest_mode="floor">(c, , scales)
        g = GlobalAveragePool(c)
        y = Flatten(g)
    }"""
    model = model_of(text, 17, first=random(4, 3, 3, 3), second=random(5, 4, 3, 3))
    return Case(model, {"b": (1, 3), "h": (8, 40), "w": (8, 40)})


def cache() -> Case:
    """Two sizes side by side: what was before, and what is new."""
    text = """
    cache (float[b, p, 6] before, float[b, n, 6] new, float[b, whole] weights)
        => (float[b, n, t] scores, float[b, t, 6] after)
    <int64[1] one = {1}>
    {
        after = Concat<axis=1>(before, new)
        turned = Transpose<perm=[0, 2, 1]>(after)
        raw = MatMul(new, turned)
        row = Unsqueeze(weights, one)
        scores = Add(raw, row)
    }"""
    model = model_of(text)
    model.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "p + n"
    return Case(model, {"b": (2, 3), "p": (2, 30), "n": (1, 9)})


def clipped() -> Case:
    """A slice that ends at 8, and a number that follows from the length."""
    text = """
    clipped (float[n, 5] x) => (float[m, 5] y)
    <int64[1] zero = {0}, int64[1] end = {8}, int64[1] rows = {0}>
    {
        part = Slice(x, zero, end, rows)
        shape = Shape<end=1>(x)
        count = Cast<to=1>(shape)
        y = Div(part, count)
    }"""
    return Case(model_of(text), {"n": (1, 25)})


def joined() -> Case:
    """Parts along the outermost axis, one of them from the size alone."""
    text = """
    joined (float[1, n, 4] x) => (float[1, m, 4] y)
    <int64 none = {0}, int64 step = {1}, int64[3] form = {1, -1, 1}, int64[3] wide = {1, 1, 4}>
    {
        shape = Shape<start=1, end=2>(x)
        count = Squeeze(shape)
        order = Range(none, count, step)
        number = Cast<to=1>(order)
        column = Reshape(number, form)
        part = Expand(column, wide)
        r = Relu(x)
        y = Concat<axis=1>(r, part, r)
    }"""
    return Case(model_of(text), {"n": (1, 30)})


CASES = {
    case.__name__: case for case in (attention, windows, cache, clipped, joined)
}  # fmt: skip
