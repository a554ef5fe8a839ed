"""Kernels that keep sizes: their arguments and workspaces, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.subjects.bound_kernels import VaryingKernel, code_of
from tests.conformance.template_checks import expected, random_inputs
from tilesmith.codegen.host import object_cache
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import KernelSpec, default_of, verify_sizes
from tilesmith.search_space.expressions.expression import minimum
from tilesmith.search_space.expressions.sizes import Size
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError, VerificationError, WorkloadError
from tilesmith.search_space.workloads.workload import Workload

TARGET = host_target()


def kernel_of(text: str, *sizes: Size, config: Config | None = None, usual: int = 8) -> KernelSpec:
    workload, typical = Workload.parse(text), {size.name: usual for size in sizes}
    config = config or default_of(workload.at(typical), TARGET)
    return KernelSpec(workload, TARGET, config, sizes, typical)


def program_of(text: str, *sizes: Size, config: Config | None = None) -> Program:
    return kernel_of(text, *sizes, config=config).program()


def test_sizes_are_one_more_argument_in_the_order_given() -> None:
    text = "elementwise shape=[b]x[s] expression=subtract(x0,x1) x1=[s]"
    workload = Workload.parse(text)
    for names in ("bs", "sb"):
        kernel = VaryingKernel(kernel_of(text, *(Size(name, 1, 40) for name in names)))
        values = {"b": 3, "s": 37}
        assert kernel.values(values).tolist() == [values[name] for name in names]
        inputs = random_inputs(workload.at(values), np.random.default_rng(0))
        want = expected(workload.at(values), inputs)
        np.testing.assert_allclose(kernel.at(values, inputs), want, rtol=1e-6)


def test_names_of_sizes_make_no_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[str] = []
    monkeypatch.setattr(object_cache, "load", lambda key: None)
    monkeypatch.setattr(object_cache, "store", lambda key, code: stored.append(key))
    code_of(kernel_of("softmax shape=[rows]x48", Size("rows", 1, 9)))
    code_of(kernel_of("softmax shape=[i]x48", Size("i", 1, 9)))  # also what a loop is called
    code_of(kernel_of("softmax shape=[i]x48", Size("i", 1, 10)))
    assert stored[0] == stored[1] != stored[2]


def test_weights_are_packed_once_for_all_sizes() -> None:
    workload = Workload.parse("matmul m=[m] n=20 k=12 const=b epilogue=bias")
    kernel = VaryingKernel(kernel_of(workload.key, Size("m", 1, 50)))
    inputs = random_inputs(workload.at({"m": 50}), np.random.default_rng(1))
    prepared = kernel.prepare({"b": inputs["b"]})
    assert set(prepared) == {"b.packed"}
    for m in (1, 11, 12, 13, 50):
        given = {**inputs, "a": np.ascontiguousarray(inputs["a"][:m])}
        want = expected(workload.at({"m": m}), given)
        np.testing.assert_allclose(kernel.at({"m": m}, given), want, rtol=2e-5, atol=1e-5)


def test_workspaces_are_those_of_the_largest_sizes() -> None:
    small, large = (
        code_of(kernel_of("matmul m=4 n=[n] k=[k]", Size("n", 1, most), Size("k", 1, most)))
        for most in (32, 320)
    )
    assert large.shared_bytes == 100 * small.shared_bytes == 320 * 320 * 4


def test_what_has_no_program_is_refused() -> None:
    with pytest.raises(WorkloadError, match="varies with 's', which has no range"):
        workload = Workload.parse("softmax shape=[b]x[s]")
        sizes = (Size("b", 1, 9),)
        KernelSpec(workload, TARGET, Config.of(), sizes, {"b": 1, "s": 2}).program()
    with pytest.raises(ConfigError, match="algorithm"):
        kernel_of(
            "softmax shape=[b]x8", Size("b", 1, 9), config=Config.of(algorithm="none")
        ).program()
    with pytest.raises(WorkloadError, match="does not fit"):  # at its least size
        program_of("conv2d c=3 h=[h] w=9 oc=4 kh=3 kw=3", Size("h", 1, 9))
    with pytest.raises(WorkloadError, match="h and w cannot vary with ceil=1"):
        kernel_of(
            "pool2d kind=max c=3 h=[h] w=9 kh=3 kw=3 stride=2 ceil=1", Size("h", 3, 9)
        ).program()
    with pytest.raises(WorkloadError, match="a fixed multiple or part of it"):
        program_of("resize shape=3x[s] sizes=3x[s+1]", Size("s", 1, 9))


def test_programs_are_verified_at_some_of_their_sizes() -> None:
    program = program_of("elementwise shape=[s] expression=exp(x0)", Size("s", 1, 70))
    verify_sizes(program, TARGET)
    x, y = program.parameters
    small = replace(y, shape=(minimum(y.shape[0], 69),))
    with pytest.raises(VerificationError, match="range of buffer 'y'"):
        verify_sizes(replace(program, parameters=(x, small)), TARGET)
