"""Faults put into the compiler, one at a time, and models that they make wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.defect_models import CROSSED, FOLDED, GATED, IMAGES, LAYERS, LOGITS, QUANTISED
from tilesmith.codegen import structures
from tilesmith.codegen.llvm.values import ValueEmitter
from tilesmith.codegen.llvm.vector_math import VectorMath
from tilesmith.codegen.lpu.isa.bursts import Op as BurstOp
from tilesmith.codegen.lpu.isa.bursts import Unit
from tilesmith.codegen.lpu.scheduling.emission import Emitter as BurstEmitter
from tilesmith.codegen.lpu.scheduling.scheduler import _Scheduler
from tilesmith.codegen.lpu.selection import chains
from tilesmith.codegen.native import kernel as native_kernel
from tilesmith.codegen.trainium.isa.instructions import Space
from tilesmith.codegen.trainium.kernel.builder import Kernel
from tilesmith.codegen.trainium.kernel.emitter import Emitter as Emitting
from tilesmith.codegen.trainium.linking import linker
from tilesmith.codegen.trainium.timing import scheduling
from tilesmith.compiler import assembly
from tilesmith.compiler.backends.trainium import program as trainium_program
from tilesmith.compiler.graph import Graph
from tilesmith.compiler.lowering import convolution
from tilesmith.compiler.passes import constant_folding, integer_products
from tilesmith.compiler.passes.canonical import Canonicalise
from tilesmith.compiler.passes.epilogues import FuseEpilogues
from tilesmith.compiler.rewrite import Rewriter
from tilesmith.search_space.ir.program import Loop, Program, Sequence, Statement
from tilesmith.search_space.operators.pool2d import Window
from tilesmith.search_space.operators.softmax import Softmax
from tilesmith.search_space.scheduling.emission import Emitter

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Defect:
    """A fault.

    Attributes:
        name: what it is, for people.
        patch: puts it in.
        part: what has to be named, and `named` a part of its name or of the sentence.
        nodes: as many the smallest model has at most.
    """

    name: str
    model: onnx.ModelProto
    patch: Patch
    part: str
    named: str
    target: str = "cpu"
    nodes: int = 2


def after_pass(kind: type, change: Callable[[Graph], Graph]) -> Patch:
    """A pass whose graph is changed behind it."""
    run = kind.run  # type: ignore[attr-defined]
    return lambda patch: patch.setattr(kind, "run", lambda self, graph: change(run(self, graph)))


def dropping_a_slice(graph: Graph) -> Graph:
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.is_onnx("Slice"):
            info = rewriter.info(node.writes[0])
            first = rewriter.add_constant("zero", np.zeros(len(info.dims), np.int64), "int64")
            to = rewriter.add_constant("end", np.array(info.dims), "int64")
            rewriter.replace(node, replace(node, inputs=(node.inputs[0], first, to)))
    return rewriter.finish()


def epilogues_turned_round(graph: Graph) -> Graph:
    def turned(node: Any) -> Any:
        workload = node.workload
        if workload is None or len(workload.epilogue) < 2:
            return node
        steps = tuple(reversed(workload.epilogue))
        return replace(node, workload=replace(workload, epilogue=steps))

    return graph.with_nodes(turned(node) for node in graph.nodes)


def shorter(statement: Statement) -> Statement:
    """The first loop of some length without its last iteration."""
    if isinstance(statement, Loop):
        if statement.extent.constant is None or statement.extent.constant > 1:
            return replace(statement, extent=statement.extent - 1)
        return replace(statement, body=shorter(statement.body))
    if isinstance(statement, Sequence):
        *rest, last = statement.statements
        return replace(statement, statements=(*rest, shorter(last)))
    if hasattr(statement, "body"):
        return replace(statement, body=shorter(statement.body))
    return statement


def lowering_without_a_tail(operator: str) -> Patch:
    program = Emitter.program

    def broken(self: Emitter) -> Program:
        made = program(self)
        return replace(made, body=shorter(made.body)) if made.name == operator else made

    return lambda patch: patch.setattr(Emitter, "program", broken)


def code_without_a_tail(patch: pytest.MonkeyPatch) -> None:
    emit = native_kernel.emit_module

    def broken(program: Program, *rest: Any) -> Any:
        if program.name == "matmul":
            program = replace(program, body=shorter(program.body))
        return emit(program, *rest)

    patch.setattr(native_kernel, "emit_module", broken)


def overlapping_memory(patch: pytest.MonkeyPatch) -> None:
    place = assembly.place

    def broken(graph: Graph, *rest: Any) -> Any:
        found = place(graph, *rest)
        offsets = dict(found.offsets)
        if {"a", "b"} <= offsets.keys():
            offsets["b"] = offsets["a"] + 64
        return replace(found, offsets=offsets, nbytes=found.nbytes + 4096)

    patch.setattr(assembly, "place", broken)


def weights_packed_wrong(patch: pytest.MonkeyPatch) -> None:
    prepared = assembly._Assembler._prepared

    def broken(self: Any, *rest: Any) -> Any:
        return {name: array[..., ::-1].copy() for name, array in prepared(self, *rest).items()}

    patch.setattr(assembly._Assembler, "_prepared", broken)


def folded_wrong(patch: pytest.MonkeyPatch) -> None:
    fold = Rewriter.make_constant

    def broken(self: Rewriter, name: str, value: Any) -> None:
        fold(self, name, np.asarray(value * 2 if value.dtype == np.float32 else value))

    patch.setattr(constant_folding.Rewriter, "make_constant", broken)


def padding_turned_round(patch: pytest.MonkeyPatch) -> None:
    pads = convolution.pads
    patch.setattr(
        convolution, "pads", lambda *rest: tuple((after, before) for before, after in pads(*rest))
    )


def requantised_wrong(patch: pytest.MonkeyPatch) -> None:
    to_bytes = integer_products.to_bytes

    def broken(rewriter: Any, product: Any, after: Any) -> Any:
        coding = replace(after.coding, scale=after.coding.scale * 2)
        return to_bytes(rewriter, product, replace(after, coding=coding))

    patch.setattr(integer_products, "to_bytes", broken)


def zero_point_off_by_one(patch: pytest.MonkeyPatch) -> None:
    to_bytes = integer_products.to_bytes

    def broken(rewriter: Any, product: Any, after: Any) -> Any:
        coding = replace(after.coding, zero=after.coding.zero + 1)
        return to_bytes(rewriter, product, replace(after, coding=coding))

    patch.setattr(integer_products, "to_bytes", broken)


def cut_off(patch: pytest.MonkeyPatch) -> None:
    """Code that cuts off where it should round."""
    apply = ValueEmitter._apply_float

    def broken(self: ValueEmitter, function: str, values: Any) -> Any:
        return apply(self, "floor" if function == "round" else function, values)

    patch.setattr(ValueEmitter, "_apply_float", broken)


def windows_one_cell_on(patch: pytest.MonkeyPatch) -> None:
    position = Window.position
    patch.setattr(Window, "position", lambda self, *rest: position(self, *rest) + 1)


def no_code_for_tanh(patch: pytest.MonkeyPatch) -> None:
    def broken(self: VectorMath, x: Any) -> Any:
        raise TypeError("no such call")

    patch.setattr(VectorMath, "tanh", broken)


def softmax_of_the_least(patch: pytest.MonkeyPatch) -> None:
    compute = Softmax.compute

    def broken(self: Softmax, workload: Any) -> Any:
        made = compute(self, workload)
        stages = tuple(
            replace(stage, reducer="min") if stage.name == "m" else stage for stage in made.stages
        )
        return replace(made, stages=stages)

    patch.setattr(Softmax, "compute", broken)


def prologue_without_a_tail(patch: pytest.MonkeyPatch) -> None:
    """Weights packed by a loop that ends too early, in schedules that pack them."""
    program = Emitter.program

    def broken(self: Emitter) -> Program:
        made = program(self)
        if made.prologue is None:
            return made
        return replace(made, prologue=shorter(made.prologue))

    patch.setattr(Emitter, "program", broken)


def no_waiting(patch: pytest.MonkeyPatch) -> None:
    """Programs for accelerators in which one instruction does not wait for another."""
    finish = scheduling.with_semaphores

    def broken(stream: Any, *rest: Any) -> Any:
        made = finish(stream, *rest)
        if not len(made.waits):
            return made
        row = int(np.searchsorted(made.wait_start, len(made.waits) - 1, side="right")) - 1
        starts = made.wait_start.copy()
        starts[row + 1 :] -= 1
        return replace(made, wait_start=starts, waits=made.waits[:-1])

    patch.setattr(scheduling, "with_semaphores", broken)


def tiles_over_each_other(patch: pytest.MonkeyPatch) -> None:
    """Tiles of linked programs for accelerators that lie over others."""
    place = linker.place_tiles

    def broken(draft: Any, *rest: Any) -> None:
        place(draft, *rest)
        table = draft.accesses
        mine = table["space"] == Space.SBUF
        table["offset"][mine] = table["offset"][mine] // 2 // 64 * 64

    patch.setattr(linker, "place_tiles", broken)


def another_function(patch: pytest.MonkeyPatch) -> None:
    """An activation that is another, in code for accelerators."""
    activation = Kernel.activation

    def broken(self: Kernel, out: Any, function: str, *rest: Any, **named: Any) -> None:
        activation(self, out, "relu" if function == "tanh" else function, *rest, **named)

    patch.setattr(Kernel, "activation", broken)


def another_number(patch: pytest.MonkeyPatch) -> None:
    """A constant of an instruction that is another, in code for accelerators."""
    emit = Emitting._emit

    def broken(self: Any, op: Any, *rest: Any, **named: Any) -> None:
        numbers = named.get("immediates", (0.0, 0.0, 0.0))
        named["immediates"] = tuple(number + 0.1 if number == 0.5 else number for number in numbers)
        emit(self, op, *rest, **named)

    patch.setattr(Emitting, "_emit", broken)


def another_function_of_chains(patch: pytest.MonkeyPatch) -> None:
    """Selection for chips of slices takes another function."""
    expression = chains._Emission._expression

    def broken(self: Any, node: Any) -> Any:
        value = expression(self, node)
        step = self.builder.steps[value.step]
        self.builder.steps[value.step] = replace(step, operations=relu_for_tanh(step.operations))
        return value

    patch.setattr(chains._Emission, "_expression", broken)


def relu_for_tanh(operations: Any) -> Any:
    return tuple(replace(o, function="relu") if o.function == "tanh" else o for o in operations)


def another_unit(change: Callable[[Unit], Unit]) -> Patch:
    """Units of chips of slices are emitted otherwise than scheduled."""
    unit = BurstEmitter.unit
    return lambda patch: patch.setattr(
        BurstEmitter, "unit", lambda self, made: unit(self, change(made))
    )


def another_schedule(column: str, op: BurstOp) -> Patch:
    """The last burst of a kind is emitted for another cycle or address than it was placed at."""
    finished = _Scheduler.finished

    def broken(self: Any) -> Any:
        made = finished(self)
        table = made.table.copy()
        rows = np.flatnonzero(table["op"] == op)
        if len(rows):
            table[column][rows[-1]] += 1
        return replace(made, table=table)

    return lambda patch: patch.setattr(_Scheduler, "finished", broken)


def anothers_address(patch: pytest.MonkeyPatch) -> None:
    """The last of several linked kernels reads where another's result lies."""
    link = trainium_program.links

    def broken(name: str, parts: Any, *rest: Any) -> Any:
        if len(parts) > 3:
            *others, last = parts
            old = next(p for p in last.places if p is not None and p.region == "arena")
            other = next(
                p
                for part in others
                for p in part.places
                if p is not None and p.region == "arena" and p.nbytes == old.nbytes and p != old
            )
            places = tuple(other if place == old else place for place in last.places)
            parts = [*others, replace(last, places=places)]
        return link(name, parts, *rest)

    patch.setattr(trainium_program, "links", broken)


def cleared() -> None:
    """Programs that were lowered before are lowered again."""
    structures.structure_program.cache_clear()
    structures.space_of.cache_clear()


DEFECTS = (
    Defect(
        "a pass drops a Slice", LAYERS, after_pass(Canonicalise, dropping_a_slice),
        "pass", "canonicalise",
    ),
    Defect(
        "epilogues in the wrong order", LAYERS, after_pass(FuseEpilogues, epilogues_turned_round),
        "pass", "fuse-epilogues",
    ),
    Defect("a constant folded wrong", FOLDED, folded_wrong, "pass", "fold-constants"),
    Defect("padding on the wrong side", IMAGES, padding_turned_round, "pass", "lower-to-kernels"),
    Defect(
        "a bad requantisation", QUANTISED, requantised_wrong, "pass", "fold-integer-products",
        nodes=6,
    ),
    Defect(
        "a zero point off by one", QUANTISED, zero_point_off_by_one, "pass",
        "other values is 'p'", nodes=6,
    ),
    Defect("cut off, not rounded", QUANTISED, cut_off, "code generation", "q"),
    Defect(
        "windows one cell on", IMAGES, windows_one_cell_on, "lowering",
        "kernel 'c' (pool2d", nodes=1,
    ),
    Defect(
        "no code comes of a function", LAYERS, no_code_for_tanh, "code generation",
        "does not compile: its code fails: TypeError: no such call", nodes=4,
    ),
    Defect("a tail is left out", LAYERS, lowering_without_a_tail("matmul"), "lowering", "a"),
    Defect(
        "a layout conversion leaves a block out", IMAGES,
        lowering_without_a_tail("layout_transform"), "lowering", " to plain", nodes=5,
    ),
    Defect("code without a tail", LAYERS, code_without_a_tail, "code generation", "a"),
    Defect(
        "two tensors over each other", CROSSED, overlapping_memory, "memory plan", "b", nodes=4
    ),
    Defect("weights packed wrong", LAYERS, weights_packed_wrong, "packing", "a"),
    Defect("packing leaves a block out", LAYERS, prologue_without_a_tail, "schedule", "pack_b"),
    Defect("softmax subtracts the least", LOGITS, softmax_of_the_least, "lowering", "c"),
    Defect(
        "another function", LAYERS, another_function, "code generation", "right with 'tanh'", "trn1"
    ),
    Defect(
        "another number", GATED, another_number, "code generation", "right with 0.5", "trn1"
    ),
    Defect(
        "another function in a chain", LAYERS, another_function_of_chains, "code generation",
        "right with 'tanh'", "lpu1",
    ),
    Defect(
        "another ALU", LAYERS,
        another_unit(lambda unit: replace(unit, operations=relu_for_tanh(unit.operations))),
        "code generation", "alu %1 = relu", "lpu1",
    ),
    Defect(
        "lanes moved elsewhere", LAYERS,
        another_unit(lambda unit: replace(unit, lanes=unit.lanes[1:] + unit.lanes[:1])),
        "code generation", "shuffle", "lpu1",
    ),
    Defect(
        "a burst too late", CROSSED, another_schedule("cycle", BurstOp.ALU), "linking", "law",
        "lpu1",
    ),
    Defect(
        "a row at another address", CROSSED, another_schedule("address", BurstOp.READ), "linking",
        "law", "lpu1",
    ),
    Defect(
        "another's address", CROSSED, anothers_address, "linking",
        "the first kernel behind which memory differs is", "trn1", nodes=5,
    ),
    Defect("an engine does not wait", CROSSED, no_waiting, "linking", "instruction", "trn1"),
    Defect(
        "tiles over each other", CROSSED, tiles_over_each_other, "linking", "instruction", "trn1"
    ),
)  # fmt: skip
"""What is put in, one at a time."""
