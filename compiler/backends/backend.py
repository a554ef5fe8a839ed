"""`Backend`: what a target family has to offer so that whole models run on it.

The compiler decides *what* runs in which order, with which schedule, layouts and memory; a backend
turns one workload and configuration into code, and a run of kernel steps into something callable.
It also answers whatever else depends on the family: what its models go through, how they are timed,
judged in place and shown. A backend is found by the target's family in `backends`; adding one is
one file.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from tilesmith.compiler.backends.timed import TimedSteps
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import CodeObject, DeviceStep, KernelStep, Recipe
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError, ModelError, TargetError
from tilesmith.search_space.support.registry import Registry
from tilesmith.search_space.workloads.workload import Workload

if TYPE_CHECKING:
    from tilesmith.codegen.programs.structures import KernelSpec
    from tilesmith.compiler.backends.many_cores import CoreProgram, LinkedCores
    from tilesmith.compiler.backends.recorded import Records
    from tilesmith.compiler.backends.wrong_instruction import WrongInstruction
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.compiler.rewriting.pipeline import PassPipeline
    from tilesmith.search_space.meshes.mesh import Mesh
    from tilesmith.search_space.results.measure import MeasureResult
    from tilesmith.search_space.results.model_evaluator import ModelEvaluator
    from tilesmith.simulator.dispatch import SimulationResult


@dataclass(frozen=True)
class Compiled:
    """One compiled configuration.

    Attributes:
        code: what is stored and loaded.
        parameters: names of the code's parameters in order: operands, prepared buffers, the output
            last.
        nbytes: physical size of each parameter.
        output: name of the output parameter.
        unread: operands that the code never reads (weights that were packed).
        prepare: packs constant operands (logical arrays by name) into prepared buffers by name.
    """

    code: CodeObject
    parameters: tuple[str, ...]
    nbytes: Mapping[str, int]
    output: str
    unread: frozenset[str]
    prepare: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]


Listing = Callable[[Workload, Target, Config], str]
"""A configuration of a workload on a target, as text."""


class Backend(ABC):
    """Code generation and execution for one family of targets."""

    family: ClassVar[str]
    measured_by: ClassVar[MeasuredBy] = "simulator"
    """How whole models are timed: on this machine, or by `simulate`."""
    listings: ClassVar[Mapping[str, Listing]] = {}
    """What a configuration can be shown as, by the name of the language."""
    reuses_memory: ClassVar[bool] = True
    """Whether tensors that are not alive together may share bytes."""
    in_callers_memory: ClassVar[bool] = False
    """Whether kernels take weights wherever they lie (`Recipe.lent`), and write arrays of the
    caller's (the region "caller")."""
    computes_in: ClassVar[str] = "fp32"
    """The precision of kernels of an fp32 model, unless another is asked for."""
    image_layouts: ClassVar[tuple[str, ...]] = ()
    """Layouts of images, channels last, that elementwise kernels and joins can work in, too."""
    sends_rows: ClassVar[bool] = False
    """Whether a collective begins when its first rows are there: sums need not be cut for that."""
    keeps_bits: ClassVar[bool] = False
    """Whether schedules may be kept to one order of summation."""
    falls_back: ClassVar[bool] = False
    """Whether kernels without a schedule for the target run on the host instead."""

    def check_bits(self, target: Target, bits: str) -> None:
        """Raise `ModelError` for bits that kernels of the family cannot promise."""
        if bits != "any" and not self.keeps_bits:
            raise ModelError(
                f"target '{target.name}' promises no bits={bits}; processors do (target cpu)"
            )

    def check_size(  # noqa: B027 (most backends have all the memory of the host)
        self, target: Target, graph: "Graph", nbytes: int, chips: int = 1
    ) -> None:
        """Raise `ModelError` if a model needs more memory for weights and activations, `nbytes`,
        than so many of the target have."""

    def check_chips(self, target: Target, chips: int) -> None:
        """Raise `TargetError` unless a model may go over so many of the target in a pipeline."""
        if chips > 1:
            raise TargetError(
                f"models are not cut over several chips of target '{target.name}' by --chips; "
                "'tilesmith shard --mesh ... --pipeline' cuts them over the cores of a mesh"
            )

    def pipeline(self, target: Target, precision: str) -> "PassPipeline":
        """What a model goes through on the target before schedules are chosen.

        Args:
            precision: "fp32": the family's usual one.

        Raises:
            ModelError: a precision that the family's kernels do not have.
        """
        if precision != "fp32":
            raise ModelError(
                f"target '{target.name}' has no kernels in precision '{precision}', only fp32"
            )
        from tilesmith.compiler.rewriting.pipeline import PassPipeline

        return PassPipeline()

    @abstractmethod
    def check(self, target: Target) -> None:
        """Raise `TargetError` if code for `target` cannot run here, saying why."""

    @abstractmethod
    def compile(self, workload: Workload, target: Target, config: Config) -> Compiled:
        """Generate code for one configuration; `CodegenError` if none came of it."""

    def compile_varying(self, spec: "KernelSpec") -> Compiled:
        """Code for every size in the ranges of `spec.sizes`.

        Behind its parameters it takes one more pointer, to the sizes' values: 64-bit integers in
        the order of `spec.sizes`. `Compiled.nbytes` is empty.

        Raises:
            CodegenError, WorkloadError, ScheduleError, ConfigError: there is none.
        """
        raise CodegenError(f"family '{self.family}' has no kernels for ranges of sizes")

    def measure_in_model(
        self, workload: Workload, target: Target, configs: Sequence[Config]
    ) -> "list[MeasureResult] | None":
        """Each configuration inside a model, beside neighbours that work well with it.

        None where a kernel costs there what it costs alone.
        """
        return None

    def estimate_kernel(self, workload: Workload, target: Target, config: Config) -> float | None:
        """Seconds of a configuration that nobody measured, told at once.

        None where the family cannot tell: then peaks are all that is known.
        """
        return None

    def estimate_on_threads(
        self, workload: Workload, target: Target, configs: Sequence[Config], threads: int
    ) -> Sequence[float] | None:
        """Seconds of each configuration on so many threads, by a model of the machine.

        None where the family has no say in threads.
        """
        return None

    def estimate_model(self, recipe: Recipe) -> float | None:
        """Seconds of a whole model; None where that cannot be told without running it."""
        return None

    def simulate(
        self, recipe: Recipe, target: Target | None = None, trace: Path | None = None
    ) -> "SimulationResult":
        """Play a compiled model, where that is how models are timed (`measured_by`).

        Args:
            target: another machine for the same code (a what-if); the recipe's if None.
            trace: where to write a trace.
        """
        raise NotImplementedError(f"family '{self.family}' times its models on hardware")

    def evaluator(
        self, kernels: "Graph", target: Target, database: "Records | None", threads: int
    ) -> "ModelEvaluator | None":
        """What judges schedules in a model (`kernels` as `build.scheduled` gives them), timed as
        models of the family are; None where nothing does.
        """
        return None

    @abstractmethod
    def link(
        self,
        recipe: Recipe,
        steps: Sequence[KernelStep],
        memory: RunMemory,
    ) -> Callable[[], None]:
        """A callable that runs kernel steps one after another on the given memory."""

    def link_all(
        self,
        recipe: Recipe,
        steps: Sequence[DeviceStep],
        memory: RunMemory,
    ) -> Callable[[], None]:
        """The same of steps of every kind.

        Raises:
            ModelError: there are loops or branches, which the family does not run.
        """
        kernels = [step for step in steps if isinstance(step, KernelStep)]
        if len(kernels) < len(steps):
            raise ModelError(
                f"'{recipe.title}' has compiled loops, which family '{self.family}' does not run; "
                "compile the model again"
            )
        return self.link(recipe, kernels, memory)

    def link_timed(
        self, recipe: Recipe, steps: Sequence[DeviceStep], memory: RunMemory
    ) -> TimedSteps | None:
        """The same as steps that write down when each of them ran.

        None where the family's models do not run on this machine.
        """
        return None

    def wrong_instruction(
        self, recipe: Recipe, step: KernelStep, memory: RunMemory
    ) -> "WrongInstruction | None":
        """The first instruction of a kernel whose output differs from what its loop program means.

        Args:
            memory: as it is before the step; not changed.

        Returns:
            None where none does, or the family has no instructions that are executed here.

        Raises:
            JobError: the kernel is too large to be evaluated beside its instructions.
            CodegenError, VerificationError: its program cannot be made again.
        """
        return None

    def link_cores(self, programs: "Mapping[int, CoreProgram]", mesh: "Mesh") -> "LinkedCores":
        """Programs of several cores of a mesh, kernels and collectives, each linked to one.

        Args:
            programs: by the number of the core.

        Raises:
            TargetError: the family's programs have no collectives.
            VerificationError: cores would wait for each other for ever.
        """
        raise TargetError(
            f"the cores of mesh '{mesh.name}' are of family '{self.family}', whose programs have "
            "no collectives; its sharded models run in segments, and are costed by rooflines"
        )


backends: Registry[Backend] = Registry(
    "target family", "tilesmith.compiler.backends", TargetError, room="backend"
)


def backend_of(target: Target) -> Backend:
    """The backend of a target's family; `TargetError` if models cannot run on it."""
    backend = backends.find(target.family)
    if backend is None:
        raise TargetError(
            f"models do not run on target '{target.name}': its family '{target.family}' is for "
            f"single operators; those that run models are {', '.join(backends)}"
        )
    return backend


def measures_models(target: Target, way: MeasuredBy) -> bool:
    """Whether models run on a target at all, and are timed in this way."""
    return target.family in backends and backend_of(target).measured_by == way
