"""The backend of Trainium-like cores: kernels are instruction streams, a model is one program.

Nothing here runs on such a core; what is compiled executes functionally, instruction by
instruction, in numpy, and is timed by the simulator. The device's memory (HBM) is the executable's
arena and its constants: tensors keep bytes of their own in it, so that kernels whose tensors would
share them need not wait for each other.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import lowered
from tilesmith.compiler.backends.backend import Backend, Compiled, Listing, backends
from tilesmith.compiler.backends.many_cores import CoreProgram, LinkedCores
from tilesmith.compiler.backends.recorded import Records
from tilesmith.compiler.backends.wrong_instruction import WrongInstruction
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.numerics.precision import LowerPrecision
from tilesmith.compiler.passes.attention.attention import FuseAttention
from tilesmith.compiler.passes.fallback import FallBack, has_schedule
from tilesmith.compiler.passes.pixels import WeightPixels
from tilesmith.compiler.passes.unrolling import UnrollLoops
from tilesmith.compiler.passes.wide_floats import WidenFloats
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import CodeObject, KernelStep, Recipe
from tilesmith.compiler.rewriting.pipeline import PassPipeline
from tilesmith.families.kit.passes.choosing_by_rank import ChooseByRank
from tilesmith.families.kit.passes.known_operands import MarkKnown
from tilesmith.families.kit.passes.running_sums import RunningSumsAsProducts
from tilesmith.families.kit.passes.unpacked_weights import UnpackWeights
from tilesmith.families.trainium.backend.entrance import ConvertAtEntrance
from tilesmith.families.trainium.backend.instructions import wrong_instruction
from tilesmith.families.trainium.backend.model import latency_of, simulate_model
from tilesmith.families.trainium.backend.passes.extremes import FindExtremes
from tilesmith.families.trainium.backend.passes.few_rows import FillPartitions
from tilesmith.families.trainium.backend.passes.groups import JoinGroups
from tilesmith.families.trainium.backend.passes.long_pools import CutLongPools
from tilesmith.families.trainium.backend.passes.picked_runs import SliceRuns
from tilesmith.families.trainium.backend.passes.positions import DEEPEST, PlacesAsNumbers
from tilesmith.families.trainium.backend.passes.windows import EvenWindows
from tilesmith.families.trainium.backend.program import LinkedProgram, linked
from tilesmith.families.trainium.backend.streams import linked_streams
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.isa.storage import to_bytes
from tilesmith.families.trainium.codegen.isa.text import to_text
from tilesmith.families.trainium.codegen.linking.draft import KernelDraft, Range
from tilesmith.families.trainium.codegen.linking.linker import among_neighbours
from tilesmith.families.trainium.codegen.selection.from_program import generate
from tilesmith.families.trainium.codegen.selection.prologue import prepare
from tilesmith.families.trainium.codegen.selection.staging import (
    SUFFIX,
    Staged,
    constants_of,
    stage,
)
from tilesmith.families.trainium.simulator.execution.functional import execute_in
from tilesmith.families.trainium.simulator.skeletons import staged_stream
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.program import Program as LoopProgram
from tilesmith.search_space.meshes.mesh import Mesh
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.model_evaluator import ModelEvaluator
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError, ModelError, VerificationError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.dispatch import SimulationResult

LARGEST_LOOP = 2048
"""Up to how many nodes loops are unrolled to."""

OPERATIONS_OF_A_STEP = 100_000
"""Operations of an iteration's products from which on its loop is unrolled: with fewer, the chain
of instructions of a step takes as long as the host with them."""

LONGEST_SUM = 512
"""Elements that one triangle adds up at most: loading one of more takes longer than two steps."""


class TrainiumBackend(Backend):
    """See the module's docstring."""

    family = "trainium"
    reuses_memory = False
    falls_back = True
    listings: ClassVar[Mapping[str, Listing]] = {
        "instruction stream": lambda *which: to_text(staged_stream(*which))
    }

    def pipeline(self, target: Target, precision: str) -> PassPipeline:
        def runs(workload: Workload) -> bool:
            return has_schedule(workload, target)

        if precision == "fp16":
            raise ModelError(
                f"precision 'fp16' is for CPUs; target '{target.name}' runs fp32 and bf16"
            )
        kernels = (
            UnpackWeights(target),
            FuseAttention(runs),
            PlacesAsNumbers(DEEPEST.get(precision, 0)),
            ChooseByRank(runs),
            SliceRuns(),
            EvenWindows(),
            CutLongPools(target, runs),
            JoinGroups(target, 2 if precision == "bf16" else 4),
            RunningSumsAsProducts(LONGEST_SUM),
            ConvertAtEntrance(),
            LowerPrecision(precision),
            FindExtremes(target),
            FillPartitions(target),
            MarkKnown(),
            FallBack(target),
        )
        unroll = UnrollLoops(LARGEST_LOOP, OPERATIONS_OF_A_STEP)
        return PassPipeline(
            first=(WidenFloats(),), after_folding=(unroll, WeightPixels()), kernels=kernels
        )

    def check(self, target: Target) -> None:
        """The target has to describe a core that is complete and possible."""
        Core.of(target)

    def check_size(self, target: Target, graph: Graph, nbytes: int, chips: int = 1) -> None:
        """A model's weights and activations have to fit the core's HBM."""
        room = Core.of(target).hbm_bytes
        if nbytes > room:
            raise ModelError(
                f"model '{graph.title}' needs {nbytes / 2**30:.2f} GiB for weights and "
                "activations; "
                f"a core of target '{target.name}' has {room / 2**30:.2f} GiB (hbm.gib_chip)"
            )

    def compile(self, workload: Workload, target: Target, config: Config) -> Compiled:
        program, staged = staged_kernel(workload, target, config)
        stream = staged.stream
        touched = _touched(stream)

        def pack(constants: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
            packed = prepare(program, constants)
            return {**packed, **staged.arrange({**constants, **packed})}

        return Compiled(
            CodeObject(to_bytes(stream)),
            tuple(tensor.name for tensor in stream.tensors),
            {t.name: t.elements * size_of(t.dtype) for t in stream.tensors},
            next(t.name for t in stream.tensors if t.role == "output"),
            frozenset(buffer.name for buffer in program.parameters) - touched,
            pack,
        )

    def measure_in_model(
        self, workload: Workload, target: Target, configs: Sequence[Config]
    ) -> list[MeasureResult]:
        """Beside neighbours that keep activations on chip."""
        core = Core.of(target)
        results = []
        for config in configs:
            try:
                program, staged = staged_kernel(workload, target, config)
            except (CodegenError, VerificationError) as error:
                results.append(MeasureResult.failed(error, "simulator"))
                continue
            places = _places(staged.stream, constants_of(program, workload))
            played = timeline(
                among_neighbours(KernelDraft(workload.key, staged.stream, places), core)
            )
            results.append(MeasureResult("ok", "simulator", (played.makespan * 1e-9,)))
        return results

    def estimate_model(self, recipe: Recipe) -> float | None:
        """Programs on the timeline, transfers to and from the host."""
        return latency_of(recipe) * 1e-9

    def simulate(
        self, recipe: Recipe, target: Target | None = None, trace: Path | None = None
    ) -> SimulationResult:
        """See `model.simulate_model`."""
        return simulate_model(recipe, target, trace)

    def evaluator(
        self, kernels: Graph, target: Target, database: Records | None, threads: int
    ) -> ModelEvaluator:
        from tilesmith.families.trainium.backend.evaluator import DeviceEvaluator

        return DeviceEvaluator(kernels, target, database, threads)

    def link(
        self,
        recipe: Recipe,
        steps: Sequence[KernelStep],
        memory: RunMemory,
    ) -> Callable[[], None]:
        regions = {"arena": memory.arena, "constant": memory.constants}
        programs: list[LinkedProgram] = []

        def run() -> None:
            if not programs:  # linked when first run: simulation links the same program
                programs.append(linked(recipe, steps))
            parts = [regions[r.region][r.offset : r.stop] for r in programs[0].linked.ranges]
            execute_in(programs[0].linked.stream, parts)

        return run

    def wrong_instruction(
        self, recipe: Recipe, step: KernelStep, memory: RunMemory
    ) -> WrongInstruction | None:
        """See `instructions`."""
        return wrong_instruction(recipe, step, memory)

    def link_cores(self, programs: Mapping[int, CoreProgram], mesh: Mesh) -> LinkedCores:
        """One stream a core; see `streams.linked_streams`."""
        return linked_streams(programs, mesh)


backends.register("trainium")(TrainiumBackend())


@lru_cache(maxsize=64)
def staged_kernel(workload: Workload, target: Target, config: Config) -> tuple[LoopProgram, Staged]:
    """The loop program of a configuration, and its stream with constants staged; kept, as the cores
    of a sharded model run the same kernels on weights of their own."""
    program = lowered(workload, target, config)
    stream = generate(program, Core.of(target))
    return program, stage(stream, constants_of(program, workload))


def _places(stream: InstructionStream, constant: Collection[str]) -> tuple[Range | None, ...]:
    """Tensors one after another, constants (and what was prepared of them) apart."""
    touched = _touched(stream)
    places: list[Range | None] = []
    offset = 0
    for tensor in stream.tensors:
        nbytes = tensor.elements * size_of(tensor.dtype)
        region = "constant" if tensor.name.removesuffix(SUFFIX) in constant else "arena"
        places.append(Range(region, offset, nbytes) if tensor.name in touched else None)
        offset += nbytes
    return tuple(places)


def _touched(stream: InstructionStream) -> frozenset[str]:
    """Names of the tensors that some instruction reads or writes."""
    table = stream.accesses
    numbers = np.unique(table["tensor"][table["space"] == Space.HBM])
    return frozenset(stream.tensors[int(number)].name for number in numbers)
