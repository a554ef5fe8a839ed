"""`PassPipeline`: the passes of one family of targets, by where they stand among those of all
families.

    first, SIMPLIFICATIONS up to the folding of constants, before_folding, folding,
    [bodies opened], after_folding, the rest of SIMPLIFICATIONS, LOWERING, kernels

`compiler.driver.pipeline` has the passes of all families and puts both together.
"""

from dataclasses import dataclass

from tilesmith.compiler.rewriting.graph_pass import Pass


@dataclass(frozen=True)
class PassPipeline:
    """What the models of a family go through, beside what those of all families do.

    Attributes:
        first: on the model as it is imported.
        before_folding: while quantised weights are still written as bytes and scales.
        after_folding: on ONNX operators whose constants are known.
        kernels: on kernels, before schedules and layouts are chosen.
        opens_bodies: whether bodies of loops and branches become kernels (`Backend.link_all` then
            takes loops, branches and moves); they are opened right after constants are folded.
    """

    first: tuple[Pass, ...] = ()
    before_folding: tuple[Pass, ...] = ()
    after_folding: tuple[Pass, ...] = ()
    kernels: tuple[Pass, ...] = ()
    opens_bodies: bool = False
