"""`CompiledModule`: a compiled PyTorch module, called as the module was.

Tensors go in and come out by DLPack. Sizes that export kept symbolic may change from call to call:
what was compiled for ranges of them serves all, else what was compiled for sizes is kept for them.
Calls from several threads go on at once, as runs of executables do. Invariant: buffers and
arguments that the module writes are written after a call's results are computed, as the module
itself would leave them.
"""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilesmith.capabilities.pytorch.calls import called
from tilesmith.capabilities.pytorch.model import Shapes, TorchModel
from tilesmith.capabilities.pytorch.program import CallSignature, InputSource
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.varying.executable import VaryingExecutable
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.workloads.workload import shape_text


class CompiledModule:
    """See the module's docstring.

    Args:
        model: as traced.
        compile: makes the executable for shapes of the inputs that have symbolic dimensions.
        whole: serves all sizes, if there is such; `compile` is not called then.
    """

    executable: Executable | VaryingExecutable
    """What runs: at the sizes of export, unless it serves all."""

    def __init__(
        self,
        model: TorchModel,
        compile: Callable[[Shapes], Executable],
        whole: VaryingExecutable | None = None,
    ) -> None:
        self.model = model
        self._compile = compile
        self._lock = threading.Lock()
        self._compiled: dict[tuple[tuple[int, ...], ...], Executable] = {}
        self._symbolic = tuple(model.shapes)
        self._dims = {
            value.name: tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
            for value in model.proto.graph.input
            if value.name in self._symbolic
        }
        self._whole = whole
        self._flat = _leaves_in_order(model.signature)
        places = [-1 if s.state is not None else s.leaf for s in model.signature.sources]
        self._in_order = places == list(range(self._flat))
        self._is_one = model.signature.results.is_leaf()
        self.executable = whole or self._executable(model.shapes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives for these arguments, nested as it nests them.

        Raises:
            ModelError: other arguments than the module was traced with, or sizes it was not traced
                for.
            JobError: as `Executable.run`.
        """
        leaves: Sequence[Any] = args
        if kwargs or len(args) != self._flat or not all(map(torch.is_tensor, args)):
            leaves = self._leaves(args, kwargs)
        signature = self.model.signature
        tensors = leaves
        if leaves is not args or not self._in_order:
            tensors = [_tensor(source, leaves) for source in signature.sources]
        executable = self.executable
        if self._symbolic and self._whole is None:
            shapes = zip(signature.sources, tensors, strict=True)
            executable = self._executable({s.name: tuple(t.shape) for s, t in shapes})
        results = called(executable, signature, tensors)
        return results[0] if self._is_one else pytree.tree_unflatten(results, signature.results)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """The leaves of the arguments, of which fixed ones are what they were at export."""
        signature = self.model.signature
        expected = signature.arguments
        if kwargs:
            order = expected.child(1).context
            if set(order) == set(kwargs):
                kwargs = {name: kwargs[name] for name in order}
        leaves: list[Any]
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if tree != expected:
            raise ModelError(
                f"'{self.model.name}' was traced for other arguments than it is called with; trace "
                "it again for these"
            )
        for leaf, value in signature.fixed.items():
            if leaves[leaf] != value and leaves[leaf] is not value:
                raise ModelError(
                    f"'{self.model.name}' was traced for the argument {value!r} and is called with "
                    f"{leaves[leaf]!r}; trace it again for that"
                )
        return leaves

    def _executable(self, shapes: Shapes) -> Executable:
        shapes = {name: tuple(shapes[name]) for name in self._symbolic}
        key = tuple(shapes.values())
        with self._lock:
            if key not in self._compiled:
                self._check(shapes)
                self._compiled[key] = self._compile(shapes)
            return self._compiled[key]

    def _check(self, shapes: Shapes) -> None:
        """Refuse sizes out of range; 0 and 1 are of any range that begins at 2, as for PyTorch."""
        for name, shape in shapes.items():
            for dim, size in zip(self._dims[name], shape, strict=False):
                least, greatest = self.model.ranges.get(str(dim), (0, math.inf))
                if size > greatest or size < (least if least > 2 else 0):
                    raise ModelError(
                        f"input '{name}' of '{self.model.name}' has the shape {shape_text(shape)}; "
                        f"it was traced for {dim} from {least} to {greatest:g}"
                    )


def _leaves_in_order(signature: CallSignature) -> int:
    """How many arguments a module takes, if they are tensors one by one in order; else -1."""
    count = signature.arguments.num_leaves
    alone = pytree.tree_structure(((torch.empty(0),) * count, {})) == signature.arguments
    return count if alone and not signature.fixed else -1


def _tensor(source: InputSource, leaves: Sequence[Any]) -> torch.Tensor:
    if source.state is not None:
        return source.state
    value = leaves[source.leaf]
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)
