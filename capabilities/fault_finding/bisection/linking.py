"""Kernels that are right one by one and wrong together: the shortest run of them that still is.

On CPUs that is the program that calls them (its arguments, threads, the caller's memory); on
accelerators the linked program: which kernels, put together, no longer compute what each does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.bisection.finding import FaultFinding
from tilesmith.capabilities.fault_finding.stepping.steps import stepping
from tilesmith.compiler.recipe.program import HeldTensor, HostStep, Step
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import TilesmithError

Arrays = Mapping[str, NDArray[Any]]


def linking_fault(executable: Executable, inputs: Arrays) -> FaultFinding:
    """The shortest run of steps that computes other tensors than its steps one by one."""
    steps = executable.recipe.steps
    runs = _runs(steps)
    for first, last in runs:
        shortest = _shrunk(executable, inputs, first, last)
        if shortest is None:
            continue
        low, high, tensor, failure = shortest
        names = [str(getattr(step, "name", "a move")) for step in steps[low:high]]
        sources = tuple(s for step in steps[low:high] for s in getattr(step, "sources", ()))
        sentence = f"kernels {', '.join(names)} are right one by one, and put together "
        sentence += f"they fail: {failure}" if failure else f"give another '{tensor}'"
        details = {"steps": [low, high - 1], "kernels": names}
        if not failure:
            after = first_apart(executable, inputs, low, high)
            details |= after
            sentence += f"; {after['sentence']}" if after else ""
        name = " + ".join(names)
        return FaultFinding("linking", name, tensor, sentence, sources, details)
    sentence = (
        "every run of kernels gives what its steps do one by one, and the whole model does not: "
        "how inputs and outputs lie in the caller's memory is at fault"
    )
    return FaultFinding("linking", "callers' memory", "", sentence)


def first_apart(executable: Executable, inputs: Arrays, first: int, last: int) -> dict[str, Any]:
    """The first kernel behind which the memory of a run as one differs from what its steps leave
    one by one: looked at when all is over, in the order in which kernels write."""
    recipe = executable.recipe
    mine = [t for t in recipe.tensors if first <= t.step < last and t.place.region != "value"]
    kept = [t for t in mine if _is_read_later(recipe.steps, t, last) or _is_output(executable, t)]
    wanted = _values(executable, inputs, kept, first, last, together=False)
    values = _values(executable, inputs, kept, first, last, together=True)
    for tensor in sorted(kept, key=lambda tensor: tensor.step):
        ours, theirs = np.asarray(values[tensor.name]), np.asarray(wanted[tensor.name])
        if ours.tobytes() == theirs.tobytes():
            continue
        named = str(getattr(recipe.steps[tensor.step], "name", f"step {tensor.step}"))
        apart = np.argwhere(ours != theirs)
        share = f"{len(apart)} of {ours.size} elements"
        where = f"{tensor.place.region} + {tensor.place.offset}"
        like = _held_instead(tensor.name, ours, wanted)
        sentence = (
            f"the first kernel behind which memory differs is '{named}': {share} of "
            f"'{tensor.name}' ({where}) are others, the first at {apart[0].tolist()}{like}"
        )
        return {"first_kernel": named, "first_tensor": tensor.name, "sentence": sentence}
    return {}


def _held_instead(mine: str, ours: NDArray[Any], wanted: Mapping[str, Any]) -> str:
    """What stands there instead, where it is another tensor's."""
    for name, value in wanted.items():
        other = np.asarray(value)
        if name != mine and other.size and other.tobytes()[:64] == ours.tobytes()[:64]:
            return f"; it begins as '{name}' does"
    return ""


def _runs(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Runs of steps without the host in between, as (first, behind the last)."""
    runs: list[tuple[int, int]] = []
    start = 0
    for number, step in enumerate((*steps, None)):
        if step is None or isinstance(step, HostStep):
            if number > start:
                runs.append((start, number))
            start = number + 1
    return runs


def _shrunk(
    executable: Executable, inputs: Arrays, first: int, last: int
) -> tuple[int, int, str, str] | None:
    """The shortest run inside another that is wrong: its ends, a tensor, or how it fails."""
    whole = _wrong(executable, inputs, first, last)
    if whole is None:
        return None
    low, high, fault = first, last, whole
    while high - low > 1 and (shorter := _wrong(executable, inputs, low, high - 1)) is not None:
        high, fault = high - 1, shorter
    while high - low > 1 and (shorter := _wrong(executable, inputs, low + 1, high)) is not None:
        low, fault = low + 1, shorter
    return low, high, *fault


def _wrong(executable: Executable, inputs: Arrays, first: int, last: int) -> tuple[str, str] | None:
    """What steps `first` to `last`, run as one, make otherwise: a tensor's name and how they fail;
    None if nothing. What they are to be is what they make one by one."""
    recipe = executable.recipe
    mine = [t for t in recipe.tensors if first <= t.step < last]
    ends = [t for t in mine if _is_read_later(recipe.steps, t, last) or _is_output(executable, t)]
    wanted = _values(executable, inputs, ends or mine[-1:], first, last, together=False)
    try:
        values = _values(executable, inputs, ends or mine[-1:], first, last, together=True)
    except TilesmithError as error:
        return "", " ".join(str(error).split())[:300]
    for name, value in wanted.items():
        if np.asarray(values[name]).tobytes() != np.asarray(value).tobytes():
            return name, ""
    return None


def _values(
    executable: Executable, inputs: Arrays, tensors: Sequence[HeldTensor], first: int, last: int,
    together: bool,
) -> dict[str, Any]:  # fmt: skip
    """Tensors behind step `last`, the steps from `first` on run as one or one by one."""
    with stepping(executable, inputs) as run:
        run.advance(first)
        run.advance(last - first, together)
        return {tensor.name: run.read(tensor) for tensor in tensors}


def _is_read_later(steps: Sequence[Step], tensor: HeldTensor, last: int) -> bool:
    for step in steps[last:]:
        places = getattr(step, "arguments", ())
        if isinstance(step, HostStep):
            places = tuple(ref.place for ref in step.inputs)
        if tensor.place in places:
            return True
    return False


def _is_output(executable: Executable, tensor: HeldTensor) -> bool:
    return any(ref.place == tensor.place for ref in executable.recipe.outputs)
