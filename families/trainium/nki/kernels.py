"""A kernel in NKI as others ask for it: traced once, then run, timed and checked (`ts.nki`).

    kernel = trace("kernels/silu.py::kernel", {"v1": ((128, 32, 7168), "float32")}, "trn1")
    kernel.run({"v1": x})["v2"]; kernel.time().makespan

Invariant: a traced kernel keeps every law of instruction streams; `trace` refuses what breaks one,
with the line of its author.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.storage import from_bytes
from tilesmith.families.trainium.codegen.isa.verification import (
    verify_dataflow,
    verify_operands,
    verify_synchronisation,
)
from tilesmith.families.trainium.codegen.timing.dependences import with_semaphores
from tilesmith.families.trainium.codegen.timing.ordering import in_grant_order
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline, timeline
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.support.errors import CodegenError, InputError

Array = NDArray[Any]
Argument = Any
"""A tensor as (shape, dtype) or as an array, or a plain value: a number, a tuple, a string."""
FIRST_TARGET = "trn1"
"""Whose core a kernel is for unless another is asked for."""


@dataclass(frozen=True, eq=False)
class NkiKernel:
    """A kernel's stream for one core, and what it is given and leaves.

    Attributes:
        constants: elements of tensors that the kernel itself brings; outputs: names, in the order
            in which it returns them.
    """

    stream: InstructionStream
    constants: Mapping[str, Array]
    outputs: tuple[str, ...]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Its results by name, for inputs by the names of its parameters."""
        results = execute(self.stream, {**self.constants, **inputs})
        return {name: results[name] for name in self.outputs}

    def time(self, schedule: bool = True) -> Timeline:
        """Its timeline: in the better of the source's order and a scheduler's, or the former."""
        return timeline(self.stream, schedule=schedule)

    def inputs(self, seed: int = 0) -> dict[str, Array]:
        """Seeded random arrays for its inputs."""
        generator = np.random.default_rng(seed)
        return {
            t.name: generator.standard_normal(t.shape, dtype=np.float32).astype(to_numpy(t.dtype))
            for t in self.stream.tensors
            if t.role == "input" and t.name not in self.constants
        }


def trace(
    kernel: str,
    arguments: Mapping[str, Argument],
    target: str | Target = "trn1",
    grid: Sequence[int] = (),
    settings: Mapping[str, str] | None = None,
) -> NkiKernel:
    """Execute a kernel's file in a process of its own, and read what its function does.

    Args:
        kernel: "file.py::function"; the file runs with your rights, as if you ran it.
        arguments: by the names of the function's parameters.
        grid: instances of the kernel, `kernel[2, 4](...)`; they run one after the other.

    Raises:
        InputError: there is no such file or function, or it fails.
        CodegenError, VerificationError: the kernel breaks a law; its author's line comes first.
    """
    file, _, function = kernel.rpartition("::")
    if not file or not function:
        raise InputError(f"'{kernel}' is not of the form file.py::function")
    if not Path(file).is_file():
        raise InputError(f"there is no file '{file}'")
    loaded = load_target(target) if isinstance(target, str) else target
    core = Core.of(loaded.with_settings(dict(settings or {})))
    request = {
        "file": file, "function": function, "target": loaded.name, "grid": list(grid),
        "settings": dict(settings or {}),
        "arguments": {name: _told(value) for name, value in arguments.items()},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tilesmith-nki-") as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(request))
        _executed(folder, kernel)
        answer = json.loads((folder / "trace.json").read_text())
        draft = from_bytes((folder / "stream.bin").read_bytes(), core)
        with np.load(folder / "constants.npz") as archive:
            constants = {key: archive[key] for key in archive.files}
    lines = tuple(answer["lines"][row] for row in answer["rows"])
    tensors = tuple(replace(t, line=answer["tensors"].get(t.name, "")) for t in draft.tensors)
    stream = _verified(replace(draft, lines=lines, tensors=tensors))
    return NkiKernel(stream, constants, tuple(answer["outputs"]))


def _told(value: Argument) -> Any:
    """An argument as the worker reads it."""
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "dtype": value.dtype.name}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        return {"shape": [int(n) for n in value[0]], "dtype": value[1]}
    return repr(value.item() if isinstance(value, np.generic) else value)


def _executed(folder: Path, kernel: str) -> None:
    """Run the worker; what it refuses is raised here."""
    module = "tilesmith.families.trainium.nki.worker"
    done = subprocess.run([sys.executable, "-m", module, str(folder)], stdout=2, check=False)
    if (folder / "error.json").exists():
        raise CodegenError(json.loads((folder / "error.json").read_text())["message"])
    if done.returncode:
        raise InputError(f"the process that traced '{kernel}' ended with code {done.returncode}")


def _verified(draft: InstructionStream) -> InstructionStream:
    verify_operands(draft)
    verify_dataflow(draft)
    stream = with_semaphores(draft)
    verify_synchronisation(stream)
    return in_grant_order(stream)
