"""The CPU backend: kernels are native functions, a run of them is one native call.

Code is checked against the instruction set of the machine before it is loaded; objects are linked
once for each executable. Compiled configurations are kept on disk under everything that decides
them, our own sources included, so that compiling a model again generates no code.
"""

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilesmith import codegen, search_space
from tilesmith.codegen.host import object_cache
from tilesmith.codegen.host.machine import cpu_target, has_length, host_features, host_target
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import (
    KernelCode,
    NativeKernel,
    compile_program,
    concrete_shape,
    decoded,
    encoded,
)
from tilesmith.codegen.native.programs.driver import NativeProgram
from tilesmith.codegen.programs.structures import lowered, lowered_varying
from tilesmith.compiler.backends.backend import Backend, Compiled, Listing, backends
from tilesmith.compiler.backends.cpu.linking import linked
from tilesmith.compiler.backends.recorded import Records
from tilesmith.compiler.backends.timed import TimedSteps
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.numerics.precision import check_precision
from tilesmith.compiler.passes.attention.attention import FuseAttention
from tilesmith.compiler.passes.fallback import FallBack, has_schedule
from tilesmith.compiler.passes.integer_products import integer_products
from tilesmith.compiler.passes.narrow_kernels import NarrowKernels
from tilesmith.compiler.passes.quantised_weights import KeepQuantisedWeights
from tilesmith.compiler.passes.selections import AddSelections
from tilesmith.compiler.passes.wide_floats import WidenFloats
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import (
    CodeObject,
    DeviceStep,
    KernelStep,
    Recipe,
)
from tilesmith.compiler.rewriting.pipeline import PassPipeline
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import expressions
from tilesmith.search_space.expressions.sizes import Size
from tilesmith.search_space.hardware.instruction_set import instruction_set_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.program import Buffer, Program, blocks
from tilesmith.search_space.results.model_evaluator import ModelEvaluator
from tilesmith.search_space.schedules.cpu import attention
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support import extensions
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.family import CpuSimulator

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

    def pipeline(self, target: Target, precision: str) -> PassPipeline:
        def accepts(workload: Workload) -> bool:
            return attention.pays(workload, target) and has_schedule(workload, target)

        def runs(workload: Workload) -> bool:
            return has_schedule(workload, target)

        check_precision(precision)
        narrow = () if precision == "fp32" else (NarrowKernels(precision, runs),)
        return PassPipeline(
            first=(WidenFloats(),),
            before_folding=(KeepQuantisedWeights(LARGE), *integer_products(target)),
            after_folding=(AddSelections(exact=True),),
            kernels=(FallBack(target), FuseAttention(accepts), *narrow),
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
        return self.compile_varying(workload, (), {}, target, config)

    def compile_varying(
        self,
        workload: Workload,
        sizes: tuple[Size, ...],
        typical: Mapping[str, int],
        target: Target,
        config: Config,
    ) -> Compiled:
        code, unread = _compiled(workload, sizes, typical, target, config)
        nbytes = {} if sizes else {buffer.name: _nbytes(buffer) for buffer in code.parameters}

        @cache
        def kernel() -> NativeKernel:
            program = partial(_program, workload, sizes, typical, target, config)
            return NativeKernel(_packing(code, target, program))

        def prepare(constants: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
            if code.prologue is None:
                return {}
            return kernel().prepare(constants)

        names = tuple(buffer.name for buffer in code.parameters)
        needs = tuple(0 if name in unread else nbytes.get(name, 1) for name in names)
        return Compiled(
            CodeObject(code.object, code.shared_bytes, code.local_bytes, needs),
            names,
            nbytes,
            code.parameters[-1].name,
            unread,
            prepare,
        )

    def estimate_on_threads(
        self, workload: Workload, target: Target, configs: Sequence[Config], threads: int
    ) -> Sequence[float] | None:
        """By the analytical model, which knows which loops threads share."""
        judged = CpuSimulator(threads).judge(workload, target, configs)
        return [float(seconds) for seconds in judged.latency]

    def evaluator(
        self, kernels: Graph, target: Target, database: Records | None, threads: int
    ) -> ModelEvaluator:
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
    return emit_module(lowered(workload, target, config), target).text


def _compiled(
    workload: Workload,
    sizes: tuple[Size, ...],
    typical: Mapping[str, int],
    target: Target,
    config: Config,
) -> tuple[KernelCode, frozenset[str]]:
    """Code of a configuration and the operands it never reads, from the cache if it is there."""
    key = _cache_key(workload, target, config, *map(str, sizes), repr(typical))
    cached = object_cache.load(key)
    if cached is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return decoded(cached)
    program = _program(workload, sizes, typical, target, config)
    code = compile_program(program, target)
    unread = _unread(program) & frozenset(workload.constants)
    object_cache.store(key, encoded(code, unread))
    return code, unread


def _program(
    workload: Workload,
    sizes: tuple[Size, ...],
    typical: Mapping[str, int],
    target: Target,
    config: Config,
) -> Program:
    if sizes:
        return lowered_varying(workload, sizes, typical, target, config)
    return lowered(workload, target, config)


def _packing(code: KernelCode, target: Target, program: Callable[[], Program]) -> KernelCode:
    """Code that packs weights for a target on this machine: its own, or the same program's here.

    Programs say what is computed, lane by lane, whatever the processor; so weights for a processor
    of another kind are packed here, by code for whatever vectors there are.
    """
    try:
        backends["cpu"].check(target)
    except TargetError:
        whole = program()
        first = whole.compile_time()
        assert first is not None, f"{whole.name} has no weights to pack"
        here = host_target()
        plain = cpu_target("packing", "generic", here.text("isa.triple"))
        packing = compile_program(first, plain)
        return replace(packing, prologue=packing.object)
    return code


def _cache_key(workload: Workload, target: Target, config: Config, *more: str) -> str:
    facts = (target.text(name) for name in ("isa.triple", "isa.processor", "isa.features"))
    parts = (
        "kernel", workload.key, config.key, target.identity, *facts, toolchain.version(),
        repr(instruction_set_of(target)), _sources(), *more,
    )  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _sources() -> str:
    """A digest of the code that turns configurations into objects."""
    digest = hashlib.sha256()
    digest.update(Path(__file__).read_bytes())
    for package in (search_space, codegen):
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.read_bytes())
    for path in extensions.sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _nbytes(buffer: Buffer) -> int:
    return int(np.prod(concrete_shape(buffer), dtype=np.int64)) * size_of(buffer.dtype)


def _unread(program: Program) -> frozenset[str]:
    """Input parameters that the body reads no element of."""
    read: set[str] = set()
    for block in blocks(program.body):
        read |= {access.buffer for access, _ in block.accesses()}
        for index in (*block.indices, *block.guard, *expressions(block.value)):
            read |= index.tensors()
    inputs = {buffer.name for buffer in program.parameters if buffer.role == "input"}
    return frozenset(inputs - read)
