"""Values of host nodes outlive what they were made of: memory that a kernel writes next."""

from __future__ import annotations

import numpy as np

from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model


def test_parts_of_a_tensor_outlive_it() -> None:
    """The shapes are declared, so that the parts lie in the arena, where the whole lay before."""
    model = model_of("""g (float[4, 6] x) => (float[4, 2] y)
        <float[4, 2] a, float[4, 2] b, float[4, 2] c> {
        w = Relu(x)
        n = Constant<value = int64 {2}>()
        s = SplitToSequence<axis = 1>(w, n)
        first = Constant<value = int64 {0}>()
        second = Constant<value = int64 {1}>()
        third = Constant<value = int64 {2}>()
        a = SequenceAt(s, first)
        a2 = Neg(a)
        b = SequenceAt(s, second)
        b2 = Exp(b)
        c = SequenceAt(s, third)
        ab = Add(a2, b2)
        y = Add(ab, c)
    }""")
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    found = build(import_model(model), host_target()).run({"x": x})["y"]
    w = np.maximum(x, 0)
    np.testing.assert_allclose(found, -w[:, :2] + np.exp(w[:, 2:4]) + w[:, 4:], rtol=1e-5)
