"""What the host does as it hands tensors over: quantising inputs, laying out images.

A caller's tensor has to be copied to the chip and back anyhow; changing its layout or its element
type is part of that copy, and none of the chip's work. What is handed over so is not in a model's
cycles, as the copies themselves are not, and is named in the notes of a simulation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import KernelStep, Place, Recipe
from tilesmith.families.lpu.backend.programs.kernel_code import ChainKernelCode, KernelParameter
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

BYTES = ("int8", "uint8")


def entering(recipe: Recipe, steps: Sequence[KernelStep]) -> tuple[KernelStep, ...]:
    """The first steps of a program that do no more than bring the caller's inputs into shape."""
    given = {r.place.offset for r in recipe.inputs if r.place.region == "arena"}
    entering = []
    for step in steps:
        workload, read = Workload.parse(step.workload), _read(step)
        if not (_shapes(workload) and read and read <= given):
            break
        entering.append(step)
        given.add(step.arguments[-1].offset)
    return tuple(entering)


def leaving(recipe: Recipe, steps: Sequence[KernelStep]) -> tuple[KernelStep, ...]:
    """The last steps of a program that lay out what the caller gets."""
    taken = {r.place.offset for r in recipe.outputs if r.place.region == "arena"}
    leaving: list[KernelStep] = []
    for step in reversed(steps):
        workload = Workload.parse(step.workload)
        if workload.operator != "layout_transform" or step.arguments[-1].offset not in taken:
            break
        leaving.insert(0, step)
    return tuple(leaving)


def _read(step: KernelStep) -> set[int]:
    return {place.offset for place in step.arguments[:-1] if place.region == "arena"}


def _shapes(workload: Workload) -> bool:
    """Whether a kernel only changes the layout, or the type to bytes, of one tensor."""
    if workload.operator == "layout_transform":
        return True
    quantises = workload.operator == "elementwise" and workload.dtype in BYTES
    return quantises and len(template_of("elementwise").inputs(workload)) == 1


def hand_over(step: KernelStep, code: ChainKernelCode, memory: RunMemory) -> None:
    """Do a step in numpy, from memory to memory."""
    workload = Workload.parse(step.workload)
    template = template_of(workload.operator)
    places = dict(zip((p.name for p in code.parameters), step.arguments, strict=True))
    kinds = {p.name: p for p in code.parameters}
    layouts = ("", "")
    if workload.operator == "layout_transform":
        layouts = (workload.text("src"), workload.text("dst"))
    inputs: dict[str, NDArray[Any]] = {}
    for operand in template.operands(workload):
        if operand.name in places:
            array = _view(memory, kinds[operand.name], places[operand.name])
            inputs[operand.name] = _unpacked(array, layouts[0], operand.shape)
    result = template.reference(workload, _wide(inputs))
    last = code.parameters[-1]
    if layouts[1]:
        result = Layout.parse(layouts[1]).pack(result)
    _view(memory, last, places[last.name])[:] = result.reshape(last.shape)


def _unpacked(array: NDArray[Any], layout: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if not layout:
        return array.reshape(shape)
    parsed = Layout.parse(layout)
    return parsed.unpack(array.reshape(parsed.concrete_shape(shape)), shape)


def _wide(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Floating operands in float32, in which they are computed with."""
    return {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in inputs.items()}


def _view(memory: RunMemory, parameter: KernelParameter, place: Place) -> NDArray[Any]:
    return memory.view(place, np.dtype(to_numpy(parameter.dtype)), parameter.shape)
