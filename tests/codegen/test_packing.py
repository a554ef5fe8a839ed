"""Weights laid out anew by numpy: what the loop IR says that the prologue computes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from tests.codegen.kernels import HOST
from tilesmith.codegen.native.kernel import (
    NativeKernel,
    compile_program,
    concrete_shape,
    decoded,
    encoded,
)
from tilesmith.codegen.packing import prologues
from tilesmith.codegen.programs.structures import lowered, space_of
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.workload import Workload

COPIED = (
    "matmul m=9 n=75 k=23 const=b",
    "matmul m=5 n=40 k=12 dtype=bfloat16 const=b",
    "conv2d c=20 oc=24 h=6 w=6 kh=3 kw=3 pad=1 const=weight",
    "conv2d c=8 oc=40 h=5 w=5 kh=1 kw=1 const=weight",
    "depthwise_conv2d c=24 h=6 w=6 kh=3 kw=3 pad=1 const=weight",
)


def programs(key: str, most: int = 8) -> Iterator[Program]:
    """Of configurations from all over a workload's space, those with a prologue."""
    workload = Workload.parse(key)
    subspaces = space_of(workload, HOST).subspaces
    for subspace in subspaces[:: -(-len(subspaces) // most)]:
        for config in islice(SearchSpace((subspace,)), 0, 40, 13):
            program = lowered(workload, HOST, config)
            if program.prologue is not None:
                yield program


def weights(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        b.name: rng.integers(-9, 9, concrete_shape(b)).astype(to_numpy(b.dtype))
        for b in program.parameters
        if b.role == "input"
    }


@pytest.mark.parametrize("key", COPIED)
def test_numpy_packs_what_a_prologue_says(key: str) -> None:
    copied = 0
    for program in programs(key):
        code = compile_program(program, HOST)
        assert bool(code.copies) == (code.prologue is None)
        if not code.copies:
            continue
        copied += 1
        given, first = weights(program), program.compile_time()
        assert first is not None
        kernel = NativeKernel(decoded(encoded(code))[0])
        for name, found in kernel.prepare(given).items():
            wanted = interpret(first, given)[name].astype(np.float64)
            np.testing.assert_array_equal(found.astype(np.float64), np.nan_to_num(wanted))
    assert copied >= 3


def test_a_prologue_that_computes_is_compiled() -> None:
    key = "conv2d c=16 oc=16 h=8 w=8 kh=3 kw=3 pad=1 const=weight"
    codes = [compile_program(program, HOST) for program in programs(key, 1000)]
    assert {(bool(c.copies), c.prologue is None) for c in codes} == {(True, True), (False, False)}


def test_what_falls_into_many_boxes_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    program = next(programs(COPIED[0]))
    monkeypatch.setattr(prologues, "MOST", 0)
    code = compile_program(program, HOST)
    assert code.copies == () and code.prologue is not None
