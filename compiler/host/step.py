"""`HostCall`: a host step of an executable, ready to run: in onnxruntime or by the reference."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tilesmith.compiler.graph.value_types import texts
from tilesmith.compiler.host.nodes import HostFunction
from tilesmith.compiler.host.operators.loops import check_room
from tilesmith.compiler.host.runtime import ONNXRUNTIME, REFERENCE, session_of
from tilesmith.compiler.recipe.program import HostStep
from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy


class HostCall:
    """See the module's docstring.

    Args:
        constants: values of the weights it reads, by name.
        opsets: of the model.
        threads: how many threads it may use.
    """

    def __init__(
        self,
        step: HostStep,
        constants: Mapping[str, NDArray[Any]],
        opsets: Sequence[tuple[str, int]],
        threads: int,
    ) -> None:
        proto = onnx.NodeProto()
        proto.ParseFromString(step.proto)
        inputs = [ref.info for ref in step.inputs]
        outputs = [ref.info for ref in step.outputs]
        self._reference = HostFunction(proto, [info.name for info in inputs], opsets)
        self._loop = proto if proto.op_type == "Loop" and not proto.domain else None
        self._types = {i.name: to_numpy(i.dtype) for i in outputs if is_floating(i.dtype)}
        self._session = session_of(proto, inputs, outputs, constants, opsets, threads)

    @property
    def runtime(self) -> str:
        """What runs it: "onnxruntime" or "reference"."""
        return REFERENCE if self._session is None else ONNXRUNTIME

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by tensor name, from inputs by tensor name.

        Raises:
            JobError: the node cannot be computed on these inputs.
        """
        if self._loop is not None:
            check_room(self._loop, values)
        outputs = None if self._session is None else self._session.run(values)
        if outputs is None:
            return {n: self._typed(n, value) for n, value in self._reference.run(values).items()}
        return {name: texts(value) for name, value in outputs.items()}

    def _typed(self, name: str, value: Any) -> Any:
        """A floating tensor in the element type that the standard gives it: of narrow ones the
        reference computes some in a wider type, and leaves it at that."""
        wanted = self._types.get(name)
        if wanted is None or not isinstance(value, np.ndarray) or value.dtype == wanted:
            return value
        return value.astype(wanted) if value.dtype.kind == "f" else value
