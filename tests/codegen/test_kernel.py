"""`NativeKernel`: preparing constants, binding calls, memory, and the host's description."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.codegen.kernels import HOST
from tilesmith.codegen.host.memory import ALIGNMENT, aligned_bytes, aligned_copy, aligned_empty
from tilesmith.codegen.llvm.emitter import ScratchSpace
from tilesmith.codegen.native.kernel import compile_config, concrete_shape
from tilesmith.codegen.programs.structures import default_of, lowered, space_of, structure_program
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.microbenchmarks.peak import dot_peak_kernel, peak_kernel

pytestmark = pytest.mark.usefixtures("little_to_collect")

WORKLOAD = Workload.parse("matmul m=9 n=33 k=17 const=b epilogue=relu")
CONFIG = default_of(WORKLOAD, HOST)


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        o.name: rng.standard_normal(o.shape).astype(np.float32)
        for o in template_of("matmul").operands(WORKLOAD)
    }


def test_constants_are_packed_once_and_kept() -> None:
    kernel, given = compile_config(WORKLOAD, HOST, CONFIG), arrays()
    prepared = kernel.prepare({"b": given["b"]})
    assert list(prepared) == ["b.packed"]
    assert [b.role for b in kernel.code.parameters] == ["input", "input", "prepared", "output"]
    for seed in (1, 2):
        a = arrays(seed)["a"]
        output = kernel.allocate_output()
        kernel.run({"a": a, **prepared, kernel.output.name: output})  # b itself is not needed
        np.testing.assert_allclose(output, np.maximum(a @ given["b"], 0), atol=1e-5)


def test_a_bound_call_outlives_the_kernel_object() -> None:
    kernel, given = compile_config(WORKLOAD, HOST, CONFIG), arrays()
    output = kernel.allocate_output()
    name = kernel.output.name
    call = kernel.bind({"a": aligned_copy(given["a"]), **kernel.prepare(given), name: output})
    del kernel
    gc.collect()
    for _ in range(3):
        output[...] = -1
        call()
        np.testing.assert_allclose(output, np.maximum(given["a"] @ given["b"], 0), atol=1e-5)


def test_kernel_describes_its_operands() -> None:
    kernel = compile_config(WORKLOAD, HOST, CONFIG)
    assert [b.name for b in kernel.inputs] == ["a", "b"]
    assert concrete_shape(kernel.output) == (9, 33)
    assert kernel.allocate_output().shape == (9, 33)


def test_illegal_configurations_are_refused() -> None:
    with pytest.raises(ConfigError, match="knob 'm_tile' cannot be 99"):
        compile_config(WORKLOAD, HOST, Config.of({**CONFIG, "m_tile": 99}))


def test_a_structure_is_lowered_once() -> None:
    space = space_of(WORKLOAD, HOST)
    assert space is space_of(Workload.parse(WORKLOAD.key), HOST)
    other = Config.of({**CONFIG, "m_tile": 1})
    assert space.structure(other) == space.structure(CONFIG)
    before = structure_program.cache_info().misses
    first, second = lowered(WORKLOAD, HOST, CONFIG), lowered(WORKLOAD, HOST, other)
    assert structure_program.cache_info().misses <= before + 1
    assert first != second


@pytest.mark.parametrize("size", [1, 63, 4096, (1 << 20) + 5])
def test_memory_is_aligned_and_zero(size: int) -> None:
    area = aligned_bytes(size)
    assert area.ctypes.data % ALIGNMENT == 0
    assert area.size == size and not area.any()


def test_copies_are_made_only_where_needed() -> None:
    array = aligned_empty((3, 5), np.dtype(np.float32))
    assert aligned_copy(array) is array
    turned = aligned_copy(array.T)
    assert turned.flags.c_contiguous and turned.ctypes.data % ALIGNMENT == 0
    assert aligned_empty((0, 4), np.dtype(np.float32)).shape == (0, 4)
    assert aligned_empty((), np.dtype(np.float64)).shape == ()


def test_workspace_is_reused_and_remembers_its_peak() -> None:
    workspace = ScratchSpace()
    assert workspace.take(100) == 0
    assert workspace.take(1) == 128
    workspace.used = 0
    assert workspace.take(64) == 0
    assert workspace.peak == 192


def test_the_peak_is_pure_multiply_adds() -> None:
    kernel, operations = peak_kernel(HOST)
    lanes = vector_width(HOST)
    shape = concrete_shape(kernel.output)
    halves = {b.name: np.full(concrete_shape(b), 0.5, np.float32) for b in kernel.inputs}
    found = kernel(halves)
    steps = operations // (2 * found.size)
    assert shape[-1] == lanes and found.size >= 8 * lanes
    np.testing.assert_allclose(found, np.full(shape, 0.25 * steps), rtol=1e-5)


@pytest.mark.parametrize(("left", "right"), [("uint8", "int8"), ("bfloat16", "bfloat16")])
def test_peaks_of_dot_products(left: str, right: str) -> None:
    made = dot_peak_kernel(HOST, left, right)
    if made is None:
        pytest.skip(f"this machine adds up no products of {left} and {right}")
    kernel, operations = made
    ones = {b.name: np.ones(concrete_shape(b), to_numpy(b.dtype)) for b in kernel.inputs}
    found = kernel(ones)
    np.testing.assert_array_equal(found, np.full(found.shape, operations // (2 * found.size)))


def test_element_types_without_dot_products_have_no_peak() -> None:
    assert dot_peak_kernel(HOST, "float64", "float64") is None
