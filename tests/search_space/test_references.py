"""References are numpy throughout: larger tensors cost no more steps of Python.

Python's work is counted in lines run, not in seconds. Every template's examples are made larger by
one number of their text at a time, whatever it means; what counts is whether the tensors grew.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tilesmith.search_space
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads import epilogue
from tilesmith.search_space.workloads.error_function import erf
from tilesmith.search_space.workloads.template import template_of, templates
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.checking import random_inputs

LARGER = 7
WINDOWS = ("kh", "kw", "pad", "stride", "dilation")
"""What a window looks like is no extent: references may look at its cells one after another."""


def elements(workload: Workload) -> int:
    template = template_of(workload.operator)
    operands = (*template.operands(workload), template.output(workload))
    return sum(math.prod(operand.shape) for operand in operands)


def enlarged(text: str) -> Iterator[Workload]:
    """Legal workloads that are larger by one or all of the numbers of one parameter."""
    operator, *parameters = text.split()
    for place, parameter in enumerate(parameters):
        name, _, value = parameter.partition("=")
        if name in WINDOWS or not re.fullmatch(r"\d+(x\d+)*", value):
            continue
        numbers = [int(number) for number in value.split("x")]
        for only in {*range(len(numbers)), None} if len(numbers) > 1 else {None}:
            grown = [LARGER * n if only in (i, None) else n for i, n in enumerate(numbers)]
            changed = f"{name}={'x'.join(map(str, grown))}"
            others = [changed if i == place else p for i, p in enumerate(parameters)]
            try:
                yield Workload.parse(" ".join((operator, *others)))
            except TilesmithError:
                continue


def lines_run(action: Callable[[], object]) -> int:
    """Lines of Python that an action runs, in all functions it calls."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def reference_lines(workload: Workload) -> int:
    """Of a template's reference and its epilogue's."""
    template, inputs = template_of(workload.operator), random_inputs(workload)

    def computed() -> None:
        value = template.reference(workload, inputs)
        axis = template.channel_axis(workload) if workload.epilogue else 0
        epilogue.reference(workload.epilogue, value, inputs, axis)

    with np.errstate(all="ignore"):
        computed()  # what is cached is not counted
        return lines_run(computed)


@pytest.mark.parametrize("name", sorted(templates))
def test_python_s_work_does_not_grow_with_the_tensors(name: str) -> None:
    template = template_of(name)
    grown = 0
    for text in template.examples:
        usual = Workload.parse(text)
        lines = None
        for larger in enlarged(text):
            factor = elements(larger) / elements(usual)
            if factor < 2 or elements(larger) > 1 << 20:
                continue
            lines = reference_lines(usual) if lines is None else lines
            assert reference_lines(larger) <= lines * math.sqrt(factor) + 20, str(larger)
            grown += 1
    assert grown, f"no example of '{name}' could be made larger by one of its parameters"


def test_no_reference_calls_python_for_every_element() -> None:
    """Calls from within C are no lines of Python: what makes them is not used."""
    folder = Path(next(iter(tilesmith.search_space.__path__)))
    forbidden = re.compile(r"np\.(vectorize|frompyfunc|ndindex|ndenumerate|nditer|fromiter)\b")
    parts = (folder, folder / "operators", folder / "convolution")
    for path in (path for part in parts for path in part.glob("*.py")):
        assert not forbidden.search(path.read_text()), path


def test_the_error_function_is_exact() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal(2000) * 2, np.linspace(-7, 7, 4001), [0.0, 1e-300]])
    np.testing.assert_allclose(erf(x), [math.erf(value) for value in x], rtol=4e-15, atol=0)
    np.testing.assert_array_equal(erf([np.inf, -np.inf, np.nan]), [1.0, -1.0, np.nan])
    assert np.signbit(erf(-0.0)) and erf(0.5).shape == ()
