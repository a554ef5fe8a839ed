"""What a comparison finds out, as data: a row for each tensor, and what to look at first."""

from dataclasses import dataclass
from typing import Literal

from tilesmith.capabilities.fault_finding.stepping.errors import TensorError
from tilesmith.capabilities.fault_finding.stepping.iterations import WrongIteration
from tilesmith.compiler.backends.wrong_instruction import WrongInstruction
from tilesmith.search_space.support.json_object import JsonObject

Verdict = Literal["ok", "bad", "inherited", "sensitive", "possible", "likely", "missing", "upcast"]
"""ok: within tolerance. bad: the error arises here. inherited: its inputs are wrong, and it makes
of them what the reference makes of them. sensitive: the reference itself, in another order, in
float64 or by another implementation, is as far away. Of a lower precision by the ratio R: possible,
likely, missing (an algorithm: compensation, a wider sum) and upcast (more exact than the precision
is)."""

Deviation = Literal["", "spike", "step"]


@dataclass(frozen=True)
class TensorRow(
    JsonObject,
    keys="name node operator step sources dtype layout shape max_rel_err:error.max_rel "
    "mean_rel_err:error.mean_rel max_abs_err:error.max_abs mean_abs_err:error.mean_abs "
    "cosine:error.cosine nan:error.nan inf:error.inf reference_nan:error.reference_nan "
    "worst_index:error.worst verdict local_rel_err:local ratio local_ratio deviation",
):
    """One tensor of the compiled model.

    Attributes:
        name: of the tensor.
        node: the model's node that writes it, and its operator.
        step: what writes it in the compiled model.
        sources: names of the model's nodes that this step does the work of.
        dtype, layout: as it lies in memory.
        shape: logical.
        error: beside the reference.
        verdict: see `Verdict`.
        local: largest relative error of what is computed here from inputs as they are; None where
            nobody looked.
        ratio: R of a lower precision.
        local_ratio: R of what arises here, from inputs as they are.
        deviation: whether R returns behind it.
    """

    name: str
    node: str
    operator: str
    step: str
    sources: tuple[str, ...]
    dtype: str
    layout: str
    shape: tuple[int, ...]
    error: TensorError
    verdict: Verdict = "ok"
    local: float | None = None
    ratio: float | None = None
    local_ratio: float | None = None
    deviation: Deviation = ""

    @property
    def looked_at(self) -> bool:
        """Whether it was computed from inputs as they are, so that a verdict is its own."""
        return self.local is not None or self.local_ratio is not None


@dataclass(frozen=True)
class Replacement(JsonObject):
    """A tensor's reference value was put in place of it: what became of the outputs.

    Attributes:
        tensor: which.
        before, after: largest relative error of each output.
        ratio_before, ratio_after: R of each output, of a lower precision.
    """

    tensor: str
    before: dict[str, float]
    after: dict[str, float]
    ratio_before: dict[str, float]
    ratio_after: dict[str, float]


@dataclass(frozen=True)
class ComparisonReport(JsonObject, keys="... clean"):
    """A compiled model beside a reference.

    Attributes:
        model, target, precision, reference: what was compared, with what.
        tolerance: of the largest relative error of a float32 tensor.
        tensors: in topological order.
        first_bad: the first tensor at which an error arises.
        first_nan: the first that holds what is no number, or infinities that the reference has not.
        suspect: `first_bad`, or the first step of a lower precision.
        replacement: of the suspect, or as asked for.
        whole: outputs of the model run as a whole that differ from those of its steps.
        notes: sentences for the reader.
        instruction: the first whose output differs in the kernel of `first_bad`, on targets whose
            instructions are executed here.
        iteration: the first kernel and iteration that are wrong, where a loop writes `first_bad`.
    """

    model: str
    target: str
    precision: str
    reference: str
    tolerance: float
    tensors: tuple[TensorRow, ...]
    first_bad: str | None
    first_nan: str | None
    suspect: str | None = None
    replacement: Replacement | None = None
    whole: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    instruction: WrongInstruction | None = None
    iteration: WrongIteration | None = None

    def __repr__(self) -> str:
        where = self.first_bad or self.first_nan or ", ".join(self.whole)
        worst = "nothing is wrong" if self.clean else f"wrong at {where or 'values not finite'}"
        return (
            f"<ComparisonReport of '{self.model}' on {self.target} ({self.precision}) beside "
            f"{self.reference}: {len(self.tensors)} tensors, {worst}>"
        )

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong: what is no number in the reference either is not."""
        blamed = (row for row in self.tensors if row.verdict not in ("inherited", "sensitive"))
        ours = any(row.error.nan or row.error.inf for row in blamed)
        return self.first_bad is None and not ours and not self.whole
