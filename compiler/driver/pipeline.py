"""The order of the passes, in one place.

`SIMPLIFICATIONS` work on ONNX operators and make the graph say what is computed in as few of them
as can be; `LOWERING` turns operators into kernels; what a target's family adds its backend says
(`Backend.pipeline`). Every pass keeps the values (up to roundings).
"""

from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.passes.activations import RecogniseActivations
from tilesmith.compiler.passes.affine import FoldAffine
from tilesmith.compiler.passes.batch_norm import ExpandBatchNorm
from tilesmith.compiler.passes.bodies import OpenBodies
from tilesmith.compiler.passes.bytes_as_numbers import BytesAsNumbers, StayNumbers
from tilesmith.compiler.passes.canonical import Canonicalise
from tilesmith.compiler.passes.common_subexpressions import ShareCommon
from tilesmith.compiler.passes.constant_folding import FoldConstants
from tilesmith.compiler.passes.constant_indices import PlainIndexing
from tilesmith.compiler.passes.dead_code import RemoveDeadCode
from tilesmith.compiler.passes.elementwise import LowerElementwise
from tilesmith.compiler.passes.epilogues import FuseEpilogues
from tilesmith.compiler.passes.joins import MakeJoins
from tilesmith.compiler.passes.normalisation import RecogniseNormalisations
from tilesmith.compiler.passes.padding import FoldPadding
from tilesmith.compiler.passes.quantised_weights import KeepQuantisedWeights
from tilesmith.compiler.passes.same_bits import SameBits
from tilesmith.compiler.passes.scales import MoveScales
from tilesmith.compiler.passes.scattered_axes import ScatterInside
from tilesmith.compiler.passes.selections import AddSelections
from tilesmith.compiler.passes.spellings import UnifySpellings
from tilesmith.compiler.passes.transposes import SinkTransposes, TransposeInside
from tilesmith.compiler.passes.views import MakeViews
from tilesmith.compiler.passes.volumes import FlattenVolumes
from tilesmith.compiler.rewriting.decomposition import Decompose
from tilesmith.compiler.rewriting.graph_pass import Pass, apply
from tilesmith.compiler.rewriting.lower import LowerToKernels
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.compiler.settling.settlement import SettleLayouts
from tilesmith.search_space.hardware.target import Target

SIMPLIFICATIONS: tuple[Pass, ...] = (
    RemoveDeadCode(),
    KeepQuantisedWeights(),
    FoldConstants(),
    PlainIndexing(),
    BytesAsNumbers(),
    Decompose(),
    StayNumbers(),
    UnifySpellings(),
    Canonicalise(),
    TransposeInside(),
    MakeViews(),
    ShareCommon(),
    FoldPadding(),
    RecogniseActivations(),
    RecogniseNormalisations(),
    SinkTransposes(),
    RemoveDeadCode(),
    ExpandBatchNorm(),
    MoveScales(),
    AddSelections(),
    FoldAffine(),
    FlattenVolumes(),
    Canonicalise(),
    MakeViews(),
    ShareCommon(),
    FoldConstants(),
    RemoveDeadCode(),
)

LOWERING: tuple[Pass, ...] = (
    MakeJoins(),
    LowerToKernels(),
    ScatterInside(),
    FoldConstants(),
    FuseEpilogues(),
    LowerElementwise(),
    MakeViews(),
    RemoveDeadCode(),
)


def passes_for(
    target: Target, precision: str = "fp32", bits: str = "any", *, bodies: bool = True
) -> tuple[Pass, ...]:
    """Every pass from an imported model to a target's kernels, in order.

    Args:
        bits: one of `workload.SUMS`.
        bodies: whether those of loops and branches become kernels, too, where the family runs them.

    Raises:
        TargetError: models cannot run on the target.
        ModelError: no such precision, or the target's kernels do not have it, or not these bits.
    """
    own = backend_of(target).pipeline(target, precision)
    backend_of(target).check_bits(target, bits)
    folding = SIMPLIFICATIONS.index(FoldConstants())
    before, after = SIMPLIFICATIONS[:folding], SIMPLIFICATIONS[folding + 1 :]
    opening: tuple[Pass, ...] = ()
    if bodies and own.opens_bodies:  # how often a loop runs may be computed
        # What an iteration hands to the next stays as it is.
        opening = (OpenBodies(lambda body: apply(body, passes_for(target, bits=bits))),)
    return (
        *own.first, *before, *own.before_folding, FoldConstants(), *opening, *own.after_folding,
        *after, *LOWERING, *own.kernels, *((SameBits(),) if bits == "same" else ()),
    )  # fmt: skip


def every_pass(target: Target, precision: str = "fp32", bits: str = "any") -> tuple[Pass, ...]:
    """`passes_for` and the settling of layouts, which ends a compilation; errors as there."""
    return (*passes_for(target, precision, bits), SettleLayouts(ScheduleChooser(target, None, 1)))


def simplify(graph: Graph) -> Graph:
    """The graph in as few, as plain ONNX operators as can be."""
    return apply(graph, SIMPLIFICATIONS)


def to_kernels(graph: Graph) -> Graph:
    """A simplified graph with everything the templates can compute as kernels."""
    return apply(graph, LOWERING)
