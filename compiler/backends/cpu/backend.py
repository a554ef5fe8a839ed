"""The CPU backend: kernels are native functions, a run of them is one native call.

Code is checked against the instruction set of the machine before it is loaded; objects are linked
once for each executable. What loads a model imports nothing that only compiling one needs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tilesmith.codegen.host.machine import has_length, host_features, host_target
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.programs.driver import NativeProgram
from tilesmith.compiler.backends.backend import Backend, Compiled, Listing, backends
from tilesmith.compiler.backends.cpu.linking import linked
from tilesmith.compiler.backends.timed import TimedSteps
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import DeviceStep, KernelStep, Recipe
from tilesmith.search_space.hardware.instruction_set import instruction_set_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.workloads.workload import Workload

if TYPE_CHECKING:
    from tilesmith.codegen.programs.structures import KernelSpec
    from tilesmith.compiler.backends.recorded import Records
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.compiler.rewriting.pipeline import PassPipeline
    from tilesmith.search_space.results.model_evaluator import ModelEvaluator

LARGE = 1 << 16
"""Quantised weights of which there are fewer are dequantised, unless they have blocks; of others
products of floats read the codes as they are, whatever shares a scale."""


class CpuBackend(Backend):
    """See the module's docstring."""

    family = "cpu"
    measured_by = "hardware"
    in_callers_memory = True
    keeps_bits = True
    listings: ClassVar[Mapping[str, Listing]] = {
        "LLVM IR": lambda *which: _llvm_ir(*which),
        "assembly": lambda *which: toolchain.emit_assembly(_llvm_ir(*which), which[1]),
    }

    def pipeline(self, target: Target, precision: str) -> "PassPipeline":
        from tilesmith.compiler.numerics.precision import check_precision
        from tilesmith.compiler.passes.attention.attention import FuseAttention
        from tilesmith.compiler.passes.fallback import FallBack, has_schedule
        from tilesmith.compiler.passes.integer_products import integer_products
        from tilesmith.compiler.passes.narrow_kernels import NarrowKernels
        from tilesmith.compiler.passes.quantised_weights import KeepQuantisedWeights
        from tilesmith.compiler.passes.selections import AddSelections
        from tilesmith.compiler.passes.wide_floats import WidenFloats
        from tilesmith.compiler.rewriting.pipeline import PassPipeline
        from tilesmith.search_space.schedules.cpu import attention

        def accepts(workload: Workload) -> bool:
            return attention.pays(workload, target) and has_schedule(workload, target)

        def runs(workload: Workload) -> bool:
            return has_schedule(workload, target)

        check_precision(precision)
        return PassPipeline(
            first=(WidenFloats(),),
            before_folding=(KeepQuantisedWeights(LARGE), *integer_products(target)),
            after_folding=(AddSelections(exact=True),),
            kernels=(FallBack(target), FuseAttention(accepts), NarrowKernels(precision, runs)),
            opens_bodies=True,
        )

    def check(self, target: Target) -> None:
        """This machine must have the target's architecture and every feature its code may use."""
        host = host_target()
        wanted, here = (t.text("isa.triple").split("-")[0] for t in (target, host))
        if wanted != here:
            raise TargetError(f"the code is for {wanted} processors; this machine is {here}")
        known = host_features()
        features = target.text("isa.features").split(",")
        missing = [f[1:] for f in features if f.startswith("+") and not known.get(f[1:])]
        if missing:
            raise TargetError(
                f"the code needs a processor with {target.text('isa.name')} "
                f"({', '.join(missing[:4])}), which this machine does not have"
            )
        if not has_length(instruction_set_of(target), host.text("isa.triple")):
            raise TargetError(
                f"the code needs vector registers of {target.integer('vector.bytes')} bytes "
                f"({target.text('isa.name')}); this machine's have another length"
            )

    def compile(self, workload: Workload, target: Target, config: Config) -> Compiled:
        from tilesmith.codegen.programs.structures import KernelSpec

        return self.compile_varying(KernelSpec(workload, target, config))

    def compile_varying(self, spec: "KernelSpec") -> Compiled:
        from tilesmith.compiler.backends.cpu.compiling import compiled

        return compiled(spec)

    def estimate_on_threads(
        self, workload: Workload, target: Target, configs: Sequence[Config], threads: int
    ) -> Sequence[float] | None:
        """By the analytical model, which knows which loops threads share."""
        from tilesmith.simulator.cpu.family import CpuSimulator

        judged = CpuSimulator(threads).judge(workload, target, configs)
        return [float(seconds) for seconds in judged.latency]

    def evaluator(
        self, kernels: "Graph", target: Target, database: "Records | None", threads: int
    ) -> "ModelEvaluator":
        from tilesmith.compiler.backends.cpu.evaluator import GraphEvaluator

        return GraphEvaluator(kernels, target, database, threads)

    def link(
        self,
        recipe: Recipe,
        steps: Sequence[KernelStep],
        memory: RunMemory,
    ) -> Callable[[], None]:
        return self.link_all(recipe, steps, memory)

    def link_all(
        self,
        recipe: Recipe,
        steps: Sequence[DeviceStep],
        memory: RunMemory,
    ) -> Callable[[], None]:
        return linked(NativeProgram, recipe, steps, memory)[0]

    def link_timed(
        self, recipe: Recipe, steps: Sequence[DeviceStep], memory: RunMemory
    ) -> TimedSteps | None:
        from tilesmith.compiler.backends.cpu.timed import CpuTimedSteps

        return CpuTimedSteps(recipe, steps, memory)


backends.register("cpu")(CpuBackend())


def _llvm_ir(workload: Workload, target: Target, config: Config) -> str:
    from tilesmith.codegen.llvm.module import emit_module
    from tilesmith.codegen.programs.structures import lowered

    return emit_module(lowered(workload, target, config), target).text
