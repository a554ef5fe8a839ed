"""What every template must do, as one function of a workload and a configuration.

Shared by the conformance tests (all templates, their own examples) and the property tests (drawn
shapes). A kernel's result is compared with the template's numpy reference in float64.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_copy
from tilesmith.codegen.native.kernel import NativeKernel, compile_config, concrete_shape
from tilesmith.codegen.native.programs.driver import KernelCall, NativeProgram
from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.epilogue import reference as epilogue_reference
from tilesmith.search_space.workloads.template import Template, template_of
from tilesmith.search_space.workloads.workload import Workload

ROUNDING = {"bfloat16": 2**-8, "float16": 2**-11, "float8_e4m3": 2**-4, "float8_e5m2": 2**-3}
"""Relative error of the nearest element."""


def random_inputs(workload: Workload, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Operands by name, logical layouts; integers where the dtype says so, indices in range."""
    template = template_of(workload.operator)
    extents = template.index_extents(workload)
    found = {}
    for operand in template.operands(workload):
        kind = to_numpy(operand.dtype)
        if np.issubdtype(kind, np.integer):
            most = min(extents.get(operand.name, (50,)))
            found[operand.name] = rng.integers(-most, most, operand.shape).astype(kind)
        else:
            found[operand.name] = rng.standard_normal(operand.shape).astype(kind)
    return found


def expected(workload: Workload, inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Reference and epilogue in float64 (integers stay)."""
    template = template_of(workload.operator)
    wide = {
        operand.name: inputs[operand.name].astype(np.float64)
        if is_floating(operand.dtype)
        else inputs[operand.name]
        for operand in template.operands(workload)
    }
    result = np.asarray(template.reference(workload, wide))
    axis = template.channel_axis(workload) if workload.epilogue else 0
    return np.asarray(epilogue_reference(workload.epilogue, result, wide, axis))


def physical(
    template: Template, workload: Workload, config: Config, inputs: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Operands as the configuration reads them: its layouts hold for the first input and for the
    epilogue's full operands."""
    first, out = template.layouts(workload, config)
    own = {operand.name for operand in template.inputs(workload)}
    shape = template.output(workload).shape
    found = {}
    for name, array in inputs.items():
        layout = ""
        if name == template.inputs(workload)[0].name:
            layout = first
        elif name not in own and array.shape == shape:
            layout = out
        found[name] = Layout.parse(layout).pack(array) if layout else array
    return found


@lru_cache(maxsize=4)
def compiled(workload: Workload, config: Config) -> NativeKernel:
    """A configuration for this machine; kept for further inputs, as models keep their kernels."""
    return compile_config(workload, host_target(), config)


def run(
    workload: Workload, config: Config, inputs: dict[str, NDArray[Any]], threads: int = 1
) -> NDArray[Any]:
    """Compile and run on this machine; the result in its logical layout."""
    template = template_of(workload.operator)
    kernel = compiled(workload, config)
    assert kernel.output.dtype == template.output(workload).dtype
    given = physical(template, workload, config, inputs)
    result = kernel(given) if threads == 1 else _run_together(kernel, given, threads)
    assert result.shape == concrete_shape(kernel.output)
    shape, layout = template.output(workload).shape, template.layouts(workload, config)[1]
    if not layout:
        return result.reshape(shape)
    named = Layout.parse(layout)  # a kernel may see merged axes: the same memory, another shape
    return named.unpack(result.reshape(named.concrete_shape(shape)), shape)


def _run_together(
    kernel: NativeKernel, given: dict[str, NDArray[Any]], threads: int
) -> NDArray[Any]:
    """Several threads walk the kernel together."""
    arrays = {name: aligned_copy(array) for name, array in given.items()}
    output = kernel.allocate_output()
    arrays |= {**kernel.prepare(arrays), kernel.output.name: output}
    addresses = tuple(
        arrays[b.name].ctypes.data if b.name in arrays else 0 for b in kernel.code.parameters
    )
    code = kernel.code
    call = KernelCall(kernel.address, addresses)
    NativeProgram([call], threads, code.shared_bytes, code.local_bytes, (kernel, arrays)).run()
    return output


def check_config(
    workload: Workload, config: Config, rng: np.random.Generator, threads: int = 1
) -> None:
    """Compile, run and compare one configuration."""
    inputs = random_inputs(workload, rng)
    want, got = expected(workload, inputs), run(workload, config, inputs, threads)
    compare(workload, got, want, f"{workload.key} | {config}")


def compare(workload: Workload, got: NDArray[Any], want: NDArray[Any], where: str) -> None:
    """Assert that a result is the reference's, up to the roundings of its element type."""
    assert got.shape == want.shape, (where, got.shape, want.shape)
    if any(step.kind.gives == want.dtype.name for step in workload.epilogue):
        # Between two bytes the last bit of a float32 decides.
        apart = np.abs(got.astype(np.int32) - want)
        assert np.max(apart) <= 1 and np.mean(apart) < 0.02, where
        return
    dtype = template_of(workload.operator).output(workload).dtype
    if not is_floating(dtype):
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    # float32 sums err in proportion to what was added up; 2e-5 of the largest is a few roundings.
    scale = max(1.0, float(np.max(np.abs(want), initial=0, where=np.isfinite(want))))
    limit = 2e-5 + ROUNDING.get(dtype, 0.0)
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=limit, atol=limit * scale, err_msg=where
    )
