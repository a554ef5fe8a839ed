"""Which kernel's results were the first to leave float16's range, when a run ends in no numbers.

Models of float32 are computed in float16 here, which ends at 65,504. What is larger becomes
infinite, and what is computed of it no number; nothing of the schedule notices. So a run whose
results are not finite is looked at again, chain by chain, with the same operations in float32
beside them. A run whose results are finite costs the look at them alone, and a model that gives no
numbers in float32 either is not spoken of. Of each kernel of a model it is said once.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.recipe.program import KernelStep
from tilesmith.families.lpu.backend.programs.joining import Joined
from tilesmith.families.lpu.codegen.dataflow import Chain, ChainValue, Compute, Dataflow
from tilesmith.families.lpu.simulator.execution.arithmetic import computed
from tilesmith.families.lpu.simulator.execution.chains import Tensors, Values, run_chain
from tilesmith.search_space.support.errors import JobError

_LOG = logging.getLogger(__name__)

NARROW, WIDE = "float16", "float32"
LARGEST = float(np.finfo(NARROW).max)
Arrays = Mapping[str, NDArray[Any]]
_told: set[tuple[str, str]] = set()
"""Models and kernels that were warned of: a server does not repeat it, nor does `compare`."""


def warn(joined: Joined, steps: Sequence[KernelStep], given: Arrays, results: Arrays) -> None:
    """Say so if the results of a program are no numbers because float16 ends.

    Args:
        steps: the program's kernels, as `joined.owners` counts them.
        given: what its tensors held before the run, rows by name.
        results: rows of its results, by name.
    """
    lost = sum(_lost(rows) for rows in results.values())
    arrays = (given[held.tensor] for held in joined.inputs if held.place.region == "arena")
    if not lost or any(_lost(rows) for rows in arrays):
        return
    first = first_over(joined.flow, given)
    if first is None:
        return
    number, size = first
    step = steps[joined.owners[number]]
    if (joined.flow.name, step.name) in _told:
        return
    _told.add((joined.flow.name, step.name))
    _LOG.warning(
        "model '%s' has results that are infinite or no number: %s leaves the range of float16, in "
        "which it is computed here (its numbers reach %.4g, and over %s they are infinite); scale "
        "its weights down, or use another precision (int8); 'tilesmith compare' shows every tensor",
        joined.flow.name,
        _named(step),
        size,
        f"{LARGEST:,.0f}",
    )


def first_over(flow: Dataflow, contents: Arrays) -> tuple[int, float] | None:
    """The first chain that makes infinities of what float32 holds, and the largest such number.

    Infinities below zero alone are what masks become that are added to scores, and count only where
    there is nothing else. None: there is no such chain, or the program needs other chips.
    """
    tensors, masked = Tensors(flow.tensors, contents), None
    for number, chain in enumerate(flow.chains):
        try:
            values = run_chain(chain, tensors)
        except JobError:
            return None
        for narrow, wide in _beside(chain, values):
            over = ~np.isfinite(narrow) & np.isfinite(wide)
            if over.any():
                size = float(np.abs(wide[over]).max())
                if not np.isneginf(narrow[over]).all():
                    return number, size
                masked = masked or (number, size)
    return masked


def _beside(chain: Chain, values: Values) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """What VXM gave that is not finite, and the same computed in float32."""
    pairs = []
    for at, step in enumerate(chain.steps):
        if not isinstance(step, Compute) or not any(o.dtype == NARROW for o in step.operations):
            continue
        outputs = [values[ChainValue(at, output)] for output in range(len(step.outputs))]
        if any(_lost(output) for output in outputs):
            wide = tuple(
                replace(o, dtype=WIDE) if o.dtype == NARROW else o for o in step.operations
            )
            single = computed(wide, step.outputs, [values[value] for value in step.inputs])
            pairs += [
                (output, np.broadcast_to(one, output.shape))
                for output, one in zip(outputs, single, strict=True)
                if output.dtype.kind == "f"
            ]
    return pairs


def _lost(array: NDArray[Any]) -> int:
    """How many elements are infinite or no number."""
    return 0 if array.dtype.kind != "f" else array.size - int(np.isfinite(array).sum())


def _named(step: KernelStep) -> str:
    """A kernel in the model's own names."""
    nodes = ", ".join(f"'{name}'" for name in step.sources if name != step.name)
    return f"kernel '{step.name}'" + (f" ({nodes})" if nodes else "")
