"""ONNX's Loop on the host, for `onnx.reference`, whose own is wrong in three ways.

It stacks scan outputs along an existing axis instead of a new first one, never enters a loop whose
condition is left out, and joins what states come to by name, not by place, if no iteration is run.
Invariant: a body sees the tensors around it; its own names hide them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


class Loop(OpRun):
    """The last states, then what the body gave besides in each iteration, stacked.

    for i in range(trips) while condition:
        condition, *states, *rows = body(i, condition, *states)
    """

    op_domain = ""
    body: Any
    """The subgraph, ready to be run."""
    _run_body: Callable[..., list[Any]]

    def need_context(self) -> bool:
        """The body may read any tensor around it."""
        return True

    def _run(
        self,
        trips: Any,
        condition: Any,
        *states: Any,
        context: Mapping[str, Any] | None = None,
        body: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[Any, ...]:
        names, values = self.body.input_names, list(states)
        rows: list[list[Any]] = [[] for _ in self.body.output_names[1 + len(values) :]]
        going = True if condition is None else bool(condition)
        step = 0
        while going and (trips is None or step < int(trips)):
            given = [np.array(step, np.int64), np.array(going), *values]
            around = {**(context or {}), **dict(zip(names, given, strict=False))}
            found = self._run_body(around, attributes=attributes, bindings=bindings)
            going, values = bool(found[0]), list(found[1 : 1 + len(values)])
            for row, value in zip(rows, found[1 + len(values) :], strict=True):
                row.append(value)
            step += 1
        stacked = [np.stack(row) if row else np.empty((0,), np.float32) for row in rows]
        return (*values, *stacked)
