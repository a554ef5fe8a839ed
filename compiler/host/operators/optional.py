"""ONNX's Optional on the host: the value itself, or None.

`onnx.reference` puts a value in a list, which is a sequence, and does not let None be a result.
"""

from typing import Any

from onnx.reference.op_run import OpRun


class Optional(OpRun):
    """See the module's docstring."""

    op_domain = ""

    def _run(self, value: Any = None, **attributes: Any) -> tuple[Any, ...]:
        return (value,)

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return res
