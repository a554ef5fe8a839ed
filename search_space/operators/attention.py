"""Scaled dot-product attention, fused: scores stay where they are made.

    s[b,h,i,j] = scale * sum_k q[b,h,i,k] k[b,h,j,k] + mask      p = softmax over j of s
    y[b,h,i,e] = sum_j p[b,h,i,j] v[b,h,j,e]

A mask is added to the scores: for each sequence one row for all queries (`row`) or a row for each
(`full`); or rows for all sequences alike (`shared`), for each head (`heads`), for each head of each
sequence (`each`). On Trainium-like cores scores never leave the chip; on CPUs those of a block of
queries stay in the caches of the thread that made them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.attention_masks import MASKS
from tilesmith.search_space.errors import TargetError, WorkloadError
from tilesmith.search_space.schedules.cpu.attention import CpuAttentionSpace
from tilesmith.search_space.schedules.trainium import common as accelerator
from tilesmith.search_space.schedules.trainium.attention import AttentionSpace
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workload import Workload

DTYPES = ("float32", "bfloat16", "float16")


@templates.register("attention")
class Attention(Template):
    """See the module's docstring."""

    operator = "attention"
    summary = "scaled dot-product attention, fused"
    families = (accelerator.FAMILY, "cpu")
    parameters = (
        Parameter("m", "queries"),
        Parameter("n", "keys"),
        Parameter("k", "features of queries and keys"),
        Parameter("v", "features of values (0: as many as of keys)", 0, minimum=0),
        Parameter("heads", "attention heads", 1),
        Parameter("batch", "independent sequences", 1),
        Parameter("mask", "added to the scores", "none", choices=("none", *MASKS)),
        Parameter("scale", "factor of the scores (default: 1 / sqrt(k))", ""),
    )
    examples = (
        "attention m=19 n=33 k=7 heads=2",
        "attention m=1 n=1 k=1",
        "attention m=131 n=140 k=64 batch=2 mask=row",
        "attention m=130 n=515 k=20 v=33 mask=full",
        "attention m=40 n=70 k=16 batch=2 heads=2 mask=shared",
        "attention m=24 n=33 k=8 batch=2 heads=3 mask=heads",
        "attention m=24 n=33 k=8 batch=2 heads=2 mask=each dtype=bfloat16",
        "attention m=40 n=128 k=130 heads=2 scale=0.25",
        "attention m=128 n=128 k=64 heads=3 dtype=bfloat16",
        "attention m=65 n=600 k=64 heads=2 v=40 mask=row dtype=bfloat16",
    )

    def check(self, workload: Workload) -> None:
        if workload.dtype not in DTYPES:
            raise WorkloadError(
                f"operator 'attention': dtype={workload.dtype}; one of {', '.join(DTYPES)}"
            )
        text = workload.text("scale")
        try:
            finite = math.isfinite(float(text or "1"))
        except ValueError:
            finite = False
        if not finite:
            raise WorkloadError(f"operator 'attention': scale={text} is no finite number")

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        m, n, k = (workload.integer(name) for name in "mnk")
        batch, heads = workload.integer("batch"), workload.integer("heads")
        sizes = {"b": batch, "h": heads, "m": m, "n": n}
        kind = workload.text("mask")
        mask = [tuple(sizes[name] for name in MASKS[kind])] if kind != "none" else []
        return (
            Operand("q", (batch, heads, m, k), workload.dtype),
            Operand("k", (batch, heads, n, k), workload.dtype),
            Operand("v", (batch, heads, n, self.width(workload)), workload.dtype),
            *(Operand("mask", shape, workload.dtype) for shape in mask),
        )

    def output(self, workload: Workload) -> Operand:
        batch, heads, m = (workload.integer(name) for name in ("batch", "heads", "m"))
        return Operand("y", (batch, heads, m, self.width(workload)), workload.dtype, "output")

    @staticmethod
    def width(workload: Workload) -> int:
        """Features of a value."""
        return workload.integer("v") or workload.integer("k")

    @staticmethod
    def scale(workload: Workload) -> float:
        """What scores are multiplied by."""
        return float(workload.text("scale") or 1.0 / math.sqrt(workload.integer("k")))

    def flops(self, workload: Workload) -> int:
        m, n, k, heads, batch = (
            workload.integer(name) for name in ("m", "n", "k", "heads", "batch")
        )
        return 2 * batch * heads * m * n * (k + self.width(workload))

    def reference(self, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        scores = self.scale(workload) * (inputs["q"] @ inputs["k"].swapaxes(-1, -2))
        kind = workload.text("mask")
        if kind != "none":
            missing = tuple(i for i, name in enumerate("bhmn") if name not in MASKS[kind])
            scores = scores + np.expand_dims(inputs["mask"], missing)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = powers / powers.sum(axis=-1, keepdims=True)
        return np.asarray(weights @ inputs["v"])

    # -- targets ------------------------------------------------------------------------------
    def _space(self, workload: Workload, target: Target) -> AttentionSpace | CpuAttentionSpace:
        if target.family not in self.families:
            raise TargetError(
                f"operator 'attention' has no schedule for target '{target.name}' of family "
                f"'{target.family}'; it is for families {' and '.join(self.families)}, elsewhere "
                "use matmul and softmax"
            )
        width, scale = self.width(workload), self.scale(workload)
        if target.family == accelerator.FAMILY:
            return AttentionSpace(workload, target, width, scale)
        if workload.dtype != "float32":
            raise TargetError(
                f"operator 'attention' has no schedule for dtype={workload.dtype} on target "
                f"'{target.name}'; only for float32"
            )
        return CpuAttentionSpace(workload, target, self.inputs(workload), width, scale)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return self._space(workload, target).space()

    def default(self, workload: Workload, target: Target) -> Config:
        return self._space(workload, target).default()

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        return self._space(workload, target).schedule(structure)
