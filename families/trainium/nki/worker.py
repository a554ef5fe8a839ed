"""The process in which a kernel's file is executed: it traces one function and leaves a stream.

    python -m tilesmith.families.trainium.nki.worker FOLDER

FOLDER holds `request.json`; what comes of it is `trace.json`, `stream.bin` and `constants.npz`, or
`error.json`. The file is the user's own code and runs with the user's rights, as if it were run
itself; a process of its own keeps its modules, and the names under which ours stand in, apart.
"""

import ast
import gc
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.storage import to_bytes
from tilesmith.families.trainium.nki.building import Build, FullMemoryError
from tilesmith.families.trainium.nki.lowering import HbmPart, evacuated, operations
from tilesmith.families.trainium.nki.notation.dtypes import dtype_of
from tilesmith.families.trainium.nki.notation.errors import NkiError
from tilesmith.families.trainium.nki.notation.modules import (
    JitKernel,
    language_functions,
    standing_in,
)
from tilesmith.families.trainium.nki.notation.tensors import HBM, PSUM, NkiArray, TensorView
from tilesmith.families.trainium.nki.notation.tracing import Trace, Tracing
from tilesmith.families.trainium.nki.sharing import made_once
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import InputError, TilesmithError


def loaded(file: str, name: str) -> Any:
    """The function of a file.

    Raises:
        InputError: the file fails, or has none of that name.
    """
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        names = runpy.run_path(file, run_name="kernel")
    except TilesmithError:
        raise
    except BaseException as error:
        raise InputError(f"'{file}' fails: {said(error, file)}") from error
    function = names.get(name)
    if not callable(function):
        known = sorted(n for n, v in names.items() if isinstance(v, JitKernel))
        raise InputError(f"'{file}' has no kernel '{name}'; it has {', '.join(known) or 'none'}")
    return function


def said(error: BaseException, file: str) -> str:
    """An exception of the author's code in one line, with theirs."""
    line, trace = "", error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith("tilesmith."):
            name = Path(trace.tb_frame.f_code.co_filename)
            if name.suffix == ".py" and "runpy" not in name.name:
                line = f"{name}:{trace.tb_lineno}: "
        trace = trace.tb_next
    text = " ".join(str(error).split())
    return f"{line}{type(error).__name__}{': ' if text else ''}{text}"


def traced(request: dict[str, Any], folder: Path) -> None:
    """Trace the kernel that a request names, and leave what came of it in a folder."""
    target = load_target(request["target"]).with_settings(request["settings"])
    core = Core.of(target)
    with standing_in():
        function = loaded(request["file"], request["function"])
        grid = tuple(request["grid"])
        kernel = JitKernel(function)[grid] if grid else function
        trace = Trace(core, language_functions(), NkiArray)
        with Tracing(trace):
            arguments = {n: _argument(trace, n, v) for n, v in request["arguments"].items()}
            returned = _called(kernel, arguments, request["file"])
        outputs = _outputs(trace, arguments, returned)
        stream = _built(trace, request["function"], core)
    (folder / "stream.bin").write_bytes(to_bytes(stream))
    lines = sorted(set(stream.lines))
    place = {line: at for at, line in enumerate(lines)}
    answer = {
        "lines": lines,
        "rows": [place[line] for line in stream.lines],
        "tensors": {a.name: a.line for a in trace.arrays if a.space == HBM},
        "outputs": outputs,
    }
    (folder / "trace.json").write_text(json.dumps(answer))
    given = {a.name: a.given for a in trace.arrays if a.given is not None}
    np.savez(folder / "constants.npz", **given)


def _argument(trace: Trace, name: str, value: Any) -> Any:
    """A tensor in HBM by shape and dtype, or a plain value as Python writes it."""
    if isinstance(value, str):
        return ast.literal_eval(value)
    shape, dtype = tuple(value["shape"]), dtype_of(value["dtype"])
    return trace.declare(NkiArray(trace, name, shape, dtype, HBM, role="input"))


def _called(kernel: Any, arguments: dict[str, Any], file: str) -> list[TensorView]:
    """Call the kernel, and return the tensors that it returns."""
    try:
        result = kernel(**arguments)
    except TilesmithError:
        raise
    except BaseException as error:
        raise InputError(f"the kernel fails: {said(error, file)}") from error
    returned = list(result) if isinstance(result, (tuple, list)) else [result]
    return [view for view in returned if isinstance(view, TensorView)]


def _outputs(trace: Trace, arguments: dict[str, Any], returned: Sequence[TensorView]) -> list[str]:
    """Mark what the kernel leaves: tensors that it returns, or else arguments it stores into."""
    stored = {id(s.operands["out"].array) for s in trace.steps if s.method == "store"}
    arrays = [view.array for view in returned]
    changed = [
        v.array for v in arguments.values() if isinstance(v, TensorView) and id(v.array) in stored
    ]
    for array in changed:
        loads = (s.operands["source"].array for s in trace.steps if s.method == "load")
        if any(one is array for one in loads):
            raise NkiError(
                f"argument '{array.name}' is loaded and stored; a kernel reads its inputs and "
                "leaves its results in tensors of its own"
            )
    outputs = list(dict.fromkeys(arrays + changed))
    if not outputs:
        raise InputError("the kernel returns no tensor and stores into none of its arguments")
    for array in outputs:
        if array.space != HBM:
            raise InputError(f"the kernel returns {array.name}, a tile; results are tensors in HBM")
        array.role = "output"
    return [array.name for array in outputs]


def _built(trace: Trace, name: str, core: Core) -> InstructionStream:
    ops = operations(trace, made_once)
    moved: set[int] = set()
    while True:
        build = Build(name, core, ops)
        used = {id(v.array) for op in ops for v in op.operands.values() if isinstance(v, HbmPart)}
        for array in trace.arrays:
            if array.space == HBM and (id(array) in used or array.role != "temporary"):
                build.declare(array, array.role)
        try:
            return build.stream()
        except FullMemoryError as full:
            if full.array is None or full.array.space != PSUM or id(full.array) in moved:
                raise
            moved.add(id(full.array))
            ops = evacuated(ops, full.array)


def main(folder: Path) -> int:
    gc.disable()  # nearly all that is made is kept: looking for garbage takes half of a trace
    try:
        traced(json.loads((folder / "request.json").read_text()), folder)
    except TilesmithError as error:
        (folder / "error.json").write_text(json.dumps({"message": str(error)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
