"""Calls of intrinsics that multiply and add neighbours, on vectors of fixed or scalable width."""

from dataclasses import dataclass

from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import INDEX, Type, Value, integer, vector
from tilesmith.codegen.llvm.text.types import element_type
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.instruction_set import (
    DotProduct,
    InstructionSet,
    instruction_set_of,
)
from tilesmith.search_space.hardware.target import Target

_LLVM_FLOATS = {"bfloat16": "bfloat", "float16": "half", "float32": "float"}


def vector_of(dtype: str, count: int) -> Type:
    """A vector of elements of a dtype as LLVM's instructions take it."""
    if dtype in _LLVM_FLOATS:
        return Type(f"<{count} x {_LLVM_FLOATS[dtype]}>")
    return vector(integer(8 * size_of(dtype)), count)


def call_product(
    builder: Builder, target: Target, product: DotProduct, given: list[Value]
) -> Value:
    """Call an instruction's intrinsic on whole vectors: the sums it adds to, if it does, and its
    inputs in order; where registers are scalable, as the first part of scalable vectors."""
    dtypes = [product.accumulator, *product.inputs] if product.accumulates else [*product.inputs]
    chosen = instruction_set_of(target)
    result = vector(element_type(product.accumulator), chosen.vector_bytes // 4)
    if not chosen.vscale_bytes:
        kinds = [value.type for value in given]
        return builder.call(builder.module.declare(product.intrinsic, result, kinds), given)
    scalable = [_Scalable.of(dtype, chosen) for dtype in (*dtypes, product.accumulator)]
    wide = [s.holding(builder, value) for s, value in zip(scalable, given, strict=False)]
    last = scalable[-1]
    function = builder.module.declare(product.intrinsic, last.type, [s.type for s in scalable[:-1]])
    return last.first(builder, builder.call(function, wide), result)


@dataclass(frozen=True)
class _Scalable:
    """A scalable register of elements of a dtype, which holds one of our vectors.

    Attributes:
        suffixes: how intrinsics spell it and the vector.
    """

    type: Type
    suffixes: tuple[str, str]

    @classmethod
    def of(cls, dtype: str, chosen: InstructionSet) -> "_Scalable":
        size = size_of(dtype)
        least, whole = chosen.vscale_bytes // size, chosen.vector_bytes // size
        text = _LLVM_FLOATS.get(dtype, f"i{8 * size}")
        short = {"bfloat": "bf16", "half": "f16", "float": "f32"}.get(text, text)
        return cls(Type(f"<vscale x {least} x {text}>"), (f"nxv{least}{short}", f"v{whole}{short}"))

    def holding(self, builder: Builder, value: Value) -> Value:
        given = [Value(self.type, "poison"), value, INDEX(0)]
        name = f"llvm.vector.insert.{'.'.join(self.suffixes)}"
        kinds = [item.type for item in given]
        return builder.call(builder.module.declare(name, self.type, kinds), given)

    def first(self, builder: Builder, value: Value, kind: Type) -> Value:
        name = f"llvm.vector.extract.{'.'.join(self.suffixes[::-1])}"
        function = builder.module.declare(name, kind, [self.type, INDEX])
        return builder.call(function, [value, INDEX(0)])
