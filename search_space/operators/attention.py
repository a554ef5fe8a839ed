"""Scaled dot-product attention, fused: scores stay where they are made.

    s[b,h,i,j] = scale * sum_k q[b,h,i,k] k[b,h,j,k] + mask      p = softmax over j of s
    y[b,h,i,e] = sum_j p[b,h,i,j] v[b,h,j,e]

A mask is added to the scores: for each sequence one row for all queries (`row`) or a row for each
(`full`); or rows for all sequences alike (`shared`), for each head (`heads`), for each head of each
sequence (`each`). On Trainium-like cores scores never leave the chip; on CPUs those of a block of
queries stay in the caches of the thread that made them.

A query whose every key is left out (a mask of minus infinities) has no softmax: its results are not
numbers. A guard makes them zero, as if its weights were: those that are not numbers, whatever made
them so (1), or only those of such a query (2), where what is not a number in queries or keys stays.
With 4 more a mask selects: a key whose mask is the least number or minus infinity has that for a
score, whatever the product is; a sum with what is not a number would be none.
"""

import math
from typing import ClassVar

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.scalar import Load, Scalar, call
from tilesmith.search_space.operator_parts.attention_masks import MASKS
from tilesmith.search_space.operator_parts.fusion import tensors_of
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import ParameterValue, Workload

DTYPES = ("float32", "bfloat16", "float16")


@templates.register("attention")
class Attention(Template):
    """See the module's docstring."""

    operator = "attention"
    summary = "scaled dot-product attention, fused"
    parts = "matmul and softmax"
    parameters = (
        Parameter("m", "queries", varies=True),
        Parameter("n", "keys", varies=True),
        Parameter("k", "features of queries and keys"),
        Parameter("v", "features of values (0: as many as of keys)", 0, minimum=0),
        Parameter("heads", "attention heads", 1, varies=True),
        Parameter("batch", "independent sequences", 1, varies=True),
        Parameter("mask", "added to the scores", "none", choices=("none", *MASKS)),
        Parameter("scale", "factor of the scores (default: 1 / sqrt(k))", ""),
        Parameter(
            "guard",
            "0 for results of 1: no numbers, 2: queries of no key; + 4: masks select",
            0,
            minimum=0,
        ),
    )
    examples: ClassVar[tuple[str, ...]] = (
        "attention m=19 n=33 k=7 heads=2",
        "attention m=1 n=1 k=1",
        "attention m=131 n=140 k=64 batch=2 mask=row",
        "attention m=130 n=515 k=20 v=33 mask=full",
        "attention m=40 n=70 k=16 batch=2 heads=2 mask=shared",
        "attention m=24 n=33 k=8 batch=2 heads=3 mask=heads",
        "attention m=24 n=33 k=8 batch=2 heads=2 mask=each dtype=bfloat16",
        "attention m=40 n=128 k=130 heads=2 scale=0.25",
        "attention m=21 n=35 k=8 heads=2 mask=shared guard=1",
        "attention m=21 n=35 k=8 heads=2 mask=full guard=2",
        "attention m=128 n=128 k=64 heads=3 dtype=bfloat16",
        "attention m=65 n=600 k=64 heads=2 v=40 mask=row dtype=bfloat16",
        "attention m=40 n=35 k=8 heads=2 mask=full dtype=float16",
    )
    varying: ClassVar[tuple[str, ...]] = (
        "attention m=[s] n=[s] k=16 heads=2 batch=[b] mask=row",
        "attention m=[s] n=[t] k=20 v=33 heads=3 mask=full",
        "attention m=1 n=[t] k=8 heads=[h] mask=shared guard=1",
        "attention m=[s] n=[t] k=8 heads=2 mask=full guard=2",
    )

    def canonical(self, values: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Kernels multiply in float32, so a scale that rounds to the default's number is it."""
        try:
            scale = np.float32(float(values["scale"] or "nan"))
            if scale == np.float32(1.0 / math.sqrt(int(values["k"]))):
                values["scale"] = ""
        except ValueError:
            pass  # `check` says that it is no number
        return values | ({"v": 0} if values["v"] == values["k"] else {})

    def check(self, workload: Workload) -> None:
        if workload.dtype not in DTYPES:
            raise WorkloadError(
                f"operator 'attention': dtype={workload.dtype}; one of {', '.join(DTYPES)}"
            )
        if workload.integer("guard") not in (0, 1, 2, 4, 5, 6):
            raise WorkloadError(
                f"operator 'attention': guard={workload.integer('guard')}; 0, 1 or 2 is expected, "
                "or 4 more where the mask selects"
            )
        text = workload.text("scale")
        try:
            finite = math.isfinite(float(text or "1"))
        except ValueError:
            finite = False
        if not finite:
            raise WorkloadError(f"operator 'attention': scale={text} is no finite number")

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        m, n, k = (workload.extent(name) for name in "mnk")
        batch, heads = workload.extent("batch"), workload.extent("heads")
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
        batch, heads, m = (workload.extent(name) for name in ("batch", "heads", "m"))
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

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        scores = self.scale(workload) * (inputs["q"] @ inputs["k"].swapaxes(-1, -2))
        kind = workload.text("mask")
        if kind != "none":
            missing = tuple(i for i, name in enumerate("bhmn") if name not in MASKS[kind])
            mask = np.expand_dims(inputs["mask"], missing)
            left_out = selects(workload) & (mask.astype(np.float32) <= LOWEST)
            scores = np.where(left_out, mask, scores + mask)
        top = scores.max(axis=-1, keepdims=True)
        powers = np.exp(scores - top)
        weights = powers / powers.sum(axis=-1, keepdims=True)
        if guard := workload.integer("guard") & 3:
            no_number = np.isneginf(top) if guard == 2 else np.isnan(weights)
            weights = np.where(no_number, 0, weights)
        return np.asarray(weights @ inputs["v"])

    def compute(self, workload: Workload, turn: str = "keys") -> ComputeDefinition:
        """Scaled keys kt, scores s (with mask z), their greatest top, powers p, sums total, their
        reciprocals t, mixed values o, and y; of queries i and keys j.

        Args:
            turn: what is scaled: "keys", or queries (qt); scores are then s[key, query] of
                "queries", s[query, key] of "none".
        """
        b, h, i, j, k = (
            axis(name, workload.extent(size))
            for name, size in zip("bhijk", ("batch", "heads", "m", "n", "k"), strict=True)
        )
        e = axis("e", self.width(workload))

        def at(name: str, *axes: Axis) -> Load:
            return Load(name, (b.var, h.var, *(a.var for a in axes)))

        if turn == "keys":
            turned, source, along, pair = "kt", "k", j, (i, j)
            product = call("multiply", at("q", i, k), at("kt", j, k))
        else:
            turned, source, along = "qt", "q", i
            pair = (j, i) if turn == "queries" else (i, j)
            product = call("multiply", at("qt", i, k), at("k", j, k))
        scaled = call("multiply", at(source, along, k), self.scale(workload))
        masked: Scalar = at("s", *pair)
        kind = workload.text("mask")
        if kind != "none":
            where = {"b": b.var, "h": h.var, "m": i.var, "n": j.var}
            mask = Load("mask", tuple(where[name] for name in MASKS[kind]))
            masked = call("add", masked, mask)
            if selects(workload):
                masked = call("where", call("less_equal", mask, LOWEST), mask, masked)
        top = greatest(workload, at("top", i))
        power = call("exp", call("subtract", at("z", *pair), top))
        mixed = call("multiply", at("p", *pair), at("v", j, e))
        result = guarded(workload, at("t", i), call("multiply", at("o", i, e), at("t", i)))
        stages = (
            Stage(turned, (b, h, along, k), scaled),
            Stage("s", (b, h, *pair), product, (k,), "sum"),
            Stage("z", (b, h, *pair), masked),
            Stage("top", (b, h, i), at("z", *pair), (j,), "max_number"),
            Stage("p", (b, h, *pair), power),
            Stage("total", (b, h, i), at("p", *pair), (j,), "sum"),
            Stage("t", (b, h, i), call("reciprocal", at("total", i))),
            Stage("o", (b, h, i, e), mixed, (j,), "sum"),
            Stage("y", (b, h, i, e), result),
        )
        return ComputeDefinition(self.operator, tensors_of(self, workload), stages)


LOWEST = float(np.finfo(np.float32).min)
"""Below it is minus infinity alone."""


def selects(workload: Workload) -> bool:
    """Whether a masked key's score is ignored, even if it is NaN or infinite."""
    return workload.integer("guard") >= 4


def greatest(workload: Workload, top: Scalar) -> Scalar:
    """Return what is subtracted from a query's scores before the exponential.

    It is their maximum; with a guard for queries without keys it is at least the lowest finite
    number, so that their exponentials and sum are 0.
    """
    return call("maximum", top, LOWEST) if workload.integer("guard") & 3 == 2 else top


def guarded(workload: Workload, ratio: Scalar, result: Scalar) -> Scalar:
    """A result of a query, the reciprocal of whose sum of powers is `ratio`: 0 where that is not a
    number, or infinite, as the guard says."""
    match workload.integer("guard") & 3:
        case 1:
            return call("where", call("equal", ratio, ratio), result, 0.0)
        case 2:
            return call("where", call("is_inf", ratio), 0.0, result)
    return result
