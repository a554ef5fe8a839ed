"""The backend of LPU-like chips: kernels are chains, a model is one program placed as a whole.

Nothing here runs on such a chip; what is compiled executes functionally, burst by burst, in numpy,
and takes the cycles its schedule says. MXM multiplies float16 and bytes, so models of float32 are
computed in float16, sums in float32; quantised models in whole numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tilesmith.codegen.programs.structures import lowered
from tilesmith.compiler.backends.backend import Backend, Compiled, Listing, backends
from tilesmith.compiler.backends.many_cores import CoreProgram, LinkedCores
from tilesmith.compiler.backends.wrong_instruction import WrongInstruction
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.passes.attention.attention import FuseAttention
from tilesmith.compiler.passes.fallback import FallBack, has_schedule
from tilesmith.compiler.passes.integer_products import integer_products
from tilesmith.compiler.passes.pixels import SpreadPixels, WeightPixels
from tilesmith.compiler.passes.unrolling import UnrollLoops
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import CodeObject, KernelStep, Recipe
from tilesmith.compiler.rewriting.pipeline import PassPipeline
from tilesmith.families.kit.passes.choosing_by_rank import ChooseByRank
from tilesmith.families.kit.passes.known_operands import MarkKnown
from tilesmith.families.kit.passes.running_sums import RunningSumsAsProducts
from tilesmith.families.lpu.backend.capacity import fewest_chips, needs
from tilesmith.families.lpu.backend.chips.cores import linked_chips
from tilesmith.families.lpu.backend.chips.several_chips import pipelined, simulate_pipeline
from tilesmith.families.lpu.backend.estimates import seconds
from tilesmith.families.lpu.backend.instructions import wrong_instruction
from tilesmith.families.lpu.backend.passes.bands import BandsAsProducts
from tilesmith.families.lpu.backend.passes.extremes import ExtremesByComparison
from tilesmith.families.lpu.backend.passes.halves import LowerBesideScales
from tilesmith.families.lpu.backend.passes.keeping_rows import KeepRows
from tilesmith.families.lpu.backend.passes.narrow_indices import NarrowIndices
from tilesmith.families.lpu.backend.passes.packing_heads import PackHeads, QuantiseBehind
from tilesmith.families.lpu.backend.programs.kernel_code import ChainKernelCode
from tilesmith.families.lpu.backend.programs.model import latency_of, simulate_model
from tilesmith.families.lpu.backend.programs.program import linked
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.isa.text import to_text
from tilesmith.families.lpu.codegen.selection.from_program import select, single_numbers
from tilesmith.families.lpu.codegen.selection.layout.prologue import prepare
from tilesmith.families.lpu.schedules.building_blocks.blocks import SIDES, PixelBlock
from tilesmith.families.lpu.schedules.building_blocks.machine import check_slices, has_slices
from tilesmith.families.lpu.simulator.selected import scheduled
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.meshes.mesh import Mesh
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.dispatch import SimulationResult

DESCRIBED = "lpu1"
"""Whose schedules say what would run on a chip that is known as a roofline only."""


LARGEST_LOOP = 2048
"""Up to how many nodes loops are unrolled to."""

LONGEST_SUM = 4096
"""Elements that one triangle adds up at most: one of more would take a seventh of MEM."""


class LpuBackend(Backend):
    """See the module's docstring."""

    family = "lpu"
    reuses_memory = False
    falls_back = True
    sends_rows = True
    computes_in = "fp16"
    image_layouts = tuple(PixelBlock(*sides).layout for sides in SIDES)
    listings: ClassVar[Mapping[str, Listing]] = {
        "instruction stream": lambda *which: to_text(scheduled(*which))
    }

    def pipeline(self, target: Target, precision: str) -> PassPipeline:
        if precision == "bf16":
            raise ModelError(
                f"target '{target.name}' has no bfloat16; models of fp32 run in fp16 there"
            )
        scheduled = target if has_slices(target) else load_target(DESCRIBED)

        def runs(workload: Workload) -> bool:
            return has_schedule(workload, scheduled)

        attention = (QuantiseBehind(), FuseAttention(runs), PackHeads(runs))
        lower = LowerBesideScales(self.computes_in)
        places = (ExtremesByComparison(runs), ChooseByRank(runs, "int32", stated=True))
        rows = (
            *places,
            RunningSumsAsProducts(LONGEST_SUM, stated=True),
            BandsAsProducts(),
            lower,
            *attention,
            KeepRows(),
            MarkKnown(),
        )
        return PassPipeline(
            before_folding=integer_products(target),
            after_folding=(UnrollLoops(LARGEST_LOOP, 0), SpreadPixels(), WeightPixels()),
            kernels=(*rows, NarrowIndices(scheduled), FallBack(scheduled)),
        )

    def check(self, target: Target) -> None:
        """The target has to describe a chip that is complete and possible."""
        if has_slices(target):
            Chip.of(target)

    def check_size(self, target: Target, graph: Graph, nbytes: int, chips: int = 1) -> None:
        """A model's weights and activations have to fit into MEM, of which a roofline has none."""
        check_slices(target)
        each = Chip.of(target).sram_bytes
        room, whose = each * chips, f"{chips} chips of target" if chips > 1 else "target"
        if nbytes > room:  # with all activations at once; few of them live at a time
            enough = fewest_chips(needs(graph, target), each)
            if enough is not None and enough <= chips:
                return
            remedy = "a kernel of it is too large for any number of chips"
            if enough is not None:
                remedy = f"{enough} chips would hold it (--chips)"
            raise ModelError(
                f"model '{graph.title}' needs {nbytes / 2**20:.0f} MiB for weights and "
                "activations, "
                f"{(nbytes - room) / 2**20:.0f} MiB more than the {room / 2**20:.0f} MiB of MEM of "
                f"{whose} '{target.name}'; {remedy}"
            )

    def check_chips(self, target: Target, chips: int) -> None:
        """Chips in a pipeline: see `pipeline`."""
        check_slices(target)

    def compile(self, workload: Workload, target: Target, config: Config) -> Compiled:
        program = lowered(workload, target, config)
        later = frozenset(buffer.name for buffer in single_numbers(program))
        code = ChainKernelCode.of(
            select(program, target, frozenset(workload.constants), later=later)
        )
        touched = code.touched() | code.numbers()
        return Compiled(
            CodeObject(code.to_bytes()),
            tuple(p.name for p in code.parameters),
            {p.name: _elements(p.shape) * size_of(p.dtype) for p in code.parameters},
            code.parameters[-1].name,
            frozenset(p.name for p in code.parameters[:-1]) - touched,
            lambda constants: prepare(program, constants),
        )

    def estimate_kernel(self, workload: Workload, target: Target, config: Config) -> float | None:
        """See `estimates`."""
        return seconds(workload, target, config)

    def estimate_model(self, recipe: Recipe) -> float | None:
        """Programs as scheduled, transfers to and from the host; of a pipeline its period."""
        return pipelined(recipe).seconds if recipe.chips > 1 else latency_of(recipe)

    def simulate(
        self, recipe: Recipe, target: Target | None = None, trace: Path | None = None
    ) -> SimulationResult:
        """See `model.simulate_model`, of several chips `several_chips.simulate_pipeline`."""
        if recipe.chips > 1:
            return simulate_pipeline(recipe, target, trace)
        return simulate_model(recipe, target, trace)

    def wrong_instruction(
        self, recipe: Recipe, step: KernelStep, memory: RunMemory
    ) -> WrongInstruction | None:
        """See `instructions`."""
        return wrong_instruction(recipe, step, memory)

    def link_cores(self, programs: Mapping[int, CoreProgram], mesh: Mesh) -> LinkedCores:
        """See `cores`."""
        return linked_chips(programs, mesh)

    def link(
        self,
        recipe: Recipe,
        steps: Sequence[KernelStep],
        memory: RunMemory,
    ) -> Callable[[], None]:
        def run() -> None:
            if recipe.chips > 1 and pipelined(recipe).run(steps, memory):
                return
            linked(recipe, steps).run(memory)  # when first run: simulation links the same program

        return run


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


backends.register("lpu")(LpuBackend())
