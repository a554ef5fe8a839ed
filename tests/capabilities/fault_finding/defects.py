"""Faults put into the compiler, one at a time, and models that they make wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest

from tests.capabilities.fault_finding.accelerator_defects import (
    another_function,
    another_function_of_chains,
    another_number,
    another_schedule,
    another_unit,
    anothers_address,
    no_waiting,
    relu_for_tanh,
    tiles_over_each_other,
)
from tests.capabilities.fault_finding.defect_models import (
    CROSSED,
    FOLDED,
    GATED,
    IMAGES,
    LAYERS,
    LOGITS,
    QUANTISED,
    TALL,
)
from tilesmith.codegen.llvm.expressions.values import ValueEmitter
from tilesmith.codegen.llvm.functions.vector_math import VectorMath
from tilesmith.codegen.native import kernel as native_kernel
from tilesmith.codegen.programs import structures
from tilesmith.compiler.assembly import assembly
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.lowering import convolution
from tilesmith.compiler.passes import constant_folding, integer_products
from tilesmith.compiler.passes.canonical import Canonicalise
from tilesmith.compiler.passes.epilogues import FuseEpilogues
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp
from tilesmith.families.trainium.backend.backend import staged_kernel
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
        ends = {info.name for info in (*graph.inputs, *graph.outputs)}  # in the caller's memory
        if {"a", "b"} <= offsets.keys() - ends:
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


def cleared() -> None:
    """Programs that were lowered before are lowered again."""
    structures.structure_program.cache_clear()
    structures.space_of.cache_clear()
    staged_kernel.cache_clear()


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
        lowering_without_a_tail("layout_transform"), "lowering", "(layout_transform", nodes=5,
    ),
    Defect("code without a tail", LAYERS, code_without_a_tail, "code generation", "a"),
    Defect(
        "two tensors over each other", CROSSED, overlapping_memory, "memory plan", "b", nodes=4
    ),
    Defect(
        "a result over a part of what is read", TALL, overlapping_memory, "memory plan",
        "over a part of 'a'", nodes=3,
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
