"""Products with weights quantised by blocks along k: floats in and out, 4 or 8 bits a weight.

c[i, j] = sum_k a[i, k] * (code[j, k] - zero[j, k / block]) * scale[j, k / block]

Codes are whole numbers without a sign, `bits` each, a row of k after the other in whole blocks:
q[j, B, byte] holds those of block B, in 4 bits the even k in the lower half (as ONNX packs them:
MatMulNBits, and DequantizeLinear of uint4). Without zero points of their own all are
2^(bits - 1). A last block that k fills in part only has codes of no consequence behind its end.

`activations` says in what a is multiplied. "float32": as it is. "int8": each block of a row is
quantised beforehand, unit = max |a| / 127, code = round_half_even(a * (127 / max |a|)), products
are added up as whole numbers, and a block's sum times both scales is added in float32 (accuracy
level 4 of ONNX Runtime's MatMulNBits).
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import Expr, as_expr, floordiv, mod
from tilesmith.search_space.expressions.scalar import Const, Index, Load, Scalar, Select, call, load
from tilesmith.search_space.operator_parts.fusion import epilogue_stage, tensors_of
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload

WORD = 4
"""Bytes of weights that a 32-bit lane unpacks codes from."""

LEVELS = 127
"""The greatest code of an activation."""


_REFERENCE_SUMS = 1 << 24
"""Sums of blocks that the reference holds at once."""


@templates.register("block_quantised_matmul")
class BlockQuantisedMatmul(Template):
    """See the module's docstring."""

    operator = "block_quantised_matmul"
    fuses_epilogues = True
    summary = "matrix multiplication by weights of 4 or 8 bits with a scale for each block of k"
    parameters = (
        Parameter("m", "rows of a and c", varies=True),
        Parameter("n", "columns of c, rows of weights"),
        Parameter("k", "columns of a, weights of a row"),
        Parameter("bits", "of a weight: 4 or 8", 4),
        Parameter("block", "weights that share a scale", 32),
        Parameter("zeros", "1 if each block has a zero point of its own", 0, minimum=0),
        Parameter("activations", "what a is multiplied as", "float32", choices=("float32", "int8")),
        Parameter(
            "scales", "element type of the scales", "float32", choices=("float32", "float16")
        ),
    )
    examples = (
        "block_quantised_matmul m=1 n=37 k=64 const=q,scale",
        "block_quantised_matmul m=3 n=16 k=40 zeros=1 const=q,scale,zero epilogue=bias,relu",
        "block_quantised_matmul m=5 n=19 k=48 bits=8 block=16 const=q,scale epilogue=residual",
        "block_quantised_matmul m=1 n=37 k=70 activations=int8 const=q,scale",
        "block_quantised_matmul m=7 n=33 k=96 zeros=1 activations=int8 const=q,scale,zero",
        "block_quantised_matmul m=2 n=5 k=32 bits=8 block=16 activations=int8 const=q,scale",
        "block_quantised_matmul m=1 n=37 k=64 activations=int8 scales=float16 const=q,scale",
        "block_quantised_matmul m=5 n=20 k=40 scales=float16 const=q,scale epilogue=relu",
    )
    varying = (
        "block_quantised_matmul m=[s] n=37 k=64 const=q,scale epilogue=bias",
        "block_quantised_matmul m=[b*s] n=20 k=40 activations=int8 const=q,scale",
    )

    def check(self, workload: Workload) -> None:
        bits, block, zeros = (workload.integer(name) for name in ("bits", "block", "zeros"))
        allowed = {
            "bits": (bits in (4, 8), "4 or 8"),
            "block": (block % 16 == 0, "a multiple of 16"),
            "zeros": (zeros <= 1, "0 or 1"),
        }
        for name, (right, what) in allowed.items():
            if not right:
                raise WorkloadError(
                    f"operator '{self.operator}': {name}={workload[name]}; {what} is expected"
                )
        if workload.dtype != "float32":
            raise WorkloadError(
                f"operator '{self.operator}': dtype={workload.dtype}; float32 is expected"
            )

    @staticmethod
    def blocks(workload: Workload) -> int:
        """Blocks of a row of weights, the last perhaps filled in part."""
        return -(-workload.integer("k") // workload.integer("block"))

    @staticmethod
    def block_bytes(workload: Workload) -> int:
        """Bytes of a block's codes."""
        return workload.integer("block") * workload.integer("bits") // 8

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        n, k, blocks = workload.integer("n"), workload.integer("k"), self.blocks(workload)
        zeros = [Operand("zero", (n, blocks), "uint8")] if workload.integer("zeros") else []
        return (
            Operand("a", (workload.extent("m"), k), workload.dtype),
            Operand("q", (n, blocks, self.block_bytes(workload)), "uint8"),
            Operand("scale", (n, blocks), workload.text("scales")),
            *zeros,
        )

    def output(self, workload: Workload) -> Operand:
        shape = (workload.extent("m"), workload.integer("n"))
        return Operand("c", shape, workload.dtype, "output")

    def flops(self, workload: Workload) -> int:
        m, n, k = (workload.integer(name) for name in "mnk")
        return 2 * m * n * k

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        k, bits, block = (workload.integer(name) for name in ("k", "bits", "block"))
        q, scale = inputs["q"], inputs["scale"].astype(np.float32)
        zero = inputs["zero"] if workload.integer("zeros") else np.full(q.shape[:2], 1 << bits - 1)
        rows = np.zeros((len(inputs["a"]), q.shape[1], block), np.float32)
        rows.reshape(len(rows), -1)[:, :k] = inputs["a"]
        unit = np.ones((*rows.shape[:2], 1), np.float32)
        if workload.text("activations") == "int8":
            rows, unit = _quantised(rows)
        codes = q if bits == 8 else np.stack([q & 15, q >> 4], axis=-1)
        weights = codes.reshape(*q.shape[:2], block).astype(np.float32) - zero[..., None]
        left, right = rows.transpose(1, 0, 2), weights.astype(np.float32).transpose(1, 2, 0)
        result = np.empty((len(rows), len(q)), np.float32)
        columns = max(1, _REFERENCE_SUMS // (len(rows) * q.shape[1]))
        for start in range(0, len(q), columns):
            part = slice(start, start + columns)
            sums = np.matmul(left, right[..., part])
            result[:, part] = np.einsum("bmn,mb,nb->mn", sums, unit[..., 0], scale[part])
        return result

    # -- stages -------------------------------------------------------------------------------
    def compute(self, workload: Workload, products: int = 1) -> ComputeDefinition:
        """Blocks of activations x (with "int8": the greatest of each, top, its unit, their codes u
        and sums of codes, part), words of weights w, their products s summed over a block, c; then
        `out` where there is an epilogue.

        Args:
            products: of activations of 8 bits: how many neighbours are multiplied at once. A word
                of 1 is 32 bits, whose codes are unpacked one by one; else it is so many bytes, each
                with its own code or, of 4 bits, with one of neighbours in either half.
        """
        parts = _Parts(workload, products)
        if workload.text("activations") == "int8":
            stages = (*parts.quantised(), *parts.whole())
        else:
            stages = (parts.activations(), parts.words(), *parts.floats())
        return ComputeDefinition(
            self.operator,
            tensors_of(self, workload),
            (*stages, *epilogue_stage(self, workload, stages[-1])),
        )


def _quantised(blocks: Array) -> tuple[Array, Array]:
    """Activations in blocks along the last axis: their codes of 8 bits, and the unit of each."""
    top = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        inverse = np.where(top > 0, np.float32(LEVELS) / top, np.float32(0))
        codes = np.clip(np.nan_to_num(np.rint(blocks * inverse)), -128, 127)
    return codes, top / np.float32(LEVELS)


class _Parts:
    """Stages of one workload. Axes: row i, column j, block B, place t in a block; word g of its
    codes, and part s of a word, or half h and byte p of one."""

    def __init__(self, workload: Workload, products: int) -> None:
        template = BlockQuantisedMatmul
        self.workload, self.products = workload, products
        self.k, self.bits, self.block = (workload.integer(n) for n in ("k", "bits", "block"))
        self.halves = 8 // self.bits
        self.bytes = products if products > 1 else WORD
        self.i, self.j = axis("i", workload.extent("m")), axis("j", workload.integer("n"))
        self.b = axis("B", template.blocks(workload))
        self.g = axis("g", template.block_bytes(workload) // self.bytes)
        self.t = axis("t", self.block)
        self.h, self.p = axis("h", self.halves), axis("p", self.bytes)
        self.s = axis("s", self.bytes * self.halves)

    def _at(self, name: str, *axes: Axis) -> Load:
        return Load(name, tuple(axis.var for axis in axes))

    @property
    def _word(self) -> Expr:
        """The first place of a word."""
        return self.g.var * (self.bytes * self.halves)

    def activations(self) -> Stage:
        """x[i, B, t]: blocks of a row, zero behind its end."""
        place = self.b.var * self.block + self.t.var
        value: Scalar = load("a", self.i.var, place)
        if self.k % self.block:
            value = Select((as_expr(self.k) - 1 - place,), value, Const(0.0))
        return Stage("x", (self.i, self.b, self.t), value)

    def words(self) -> Stage:
        """w[j, B, g]: four bytes as one number; or w[j, B, g, p], bytes, with codes of neighbours
        in neighbours."""
        if self.products > 1:
            value: Scalar | None = None
            for half in range(self.halves):
                code = self._code_at(self._word + half * self.bytes + self.p.var)
                code = call("shift_left", code, float(self.bits * half)) if half else code
                value = code if value is None else call("bit_or", value, code)
            assert value is not None
            return Stage("w", (self.j, self.b, self.g, self.p), value, dtype="uint8")
        value = None
        for byte in range(WORD):
            place = self.g.var * WORD + byte
            part: Scalar = call("to_int32", load("q", self.j.var, self.b.var, place))
            part = call("shift_left", part, 8.0 * byte) if byte else part
            value = part if value is None else call("bit_or", value, part)
        assert value is not None
        return Stage("w", (self.j, self.b, self.g), value, dtype="int32")

    def _code_at(self, place: Expr) -> Scalar:
        """The code at a place of a block, from q."""
        byte = load("q", self.j.var, self.b.var, floordiv(place, self.halves))
        return self._code(byte, mod(place, self.halves), "uint8")

    def _code(self, word: Load, part: Expr, dtype: str) -> Scalar:
        """The code at a place of a byte or word, as a number of its type."""
        if self.bits == 8 and dtype == "uint8":
            return word
        shift = call(f"to_{dtype}", Index(part * self.bits))
        return call("bit_and", call("shift_right", word, shift), float((1 << self.bits) - 1))

    def _zero(self) -> Scalar:
        """The zero point of a block, an int32."""
        if self.workload.integer("zeros"):
            return call("to_int32", self._at("zero", self.j, self.b))
        return call("to_int32", float(1 << self.bits - 1))

    def _scale(self) -> Scalar:
        scale = self._at("scale", self.j, self.b)
        return scale if self.workload.text("scales") == "float32" else call("to_float32", scale)

    def floats(self) -> tuple[Stage, ...]:
        """s[i, j, B] = sum of x times codes less their zero point; c the sum of those scaled."""
        word = self._at("w", self.j, self.b, self.g)
        code = call("to_int32", self._code(word, self.s.var, "int32"))
        value = call("to_float32", call("subtract", code, self._zero()))
        x = load("x", self.i.var, self.b.var, self._word + self.s.var)
        total = call("multiply", self._at("s", self.i, self.j, self.b), self._scale())
        return (
            Stage(
                "s", (self.i, self.j, self.b), call("multiply", x, value), (self.g, self.s), "sum"
            ),
            Stage("c", (self.i, self.j), total, (self.b,), "sum"),
        )

    def quantised(self) -> tuple[Stage, ...]:
        """x, top, inverse, unit, part[i, B] and u[i, B, t]."""
        row = (self.i, self.b)
        top, x = self._at("top", *row), self._at("x", *row, self.t)
        inverse = call("where", call("greater", top, 0.0), call("divide", float(LEVELS), top), 0.0)
        scaled = call("multiply", x, self._at("inverse", *row))
        code = call("to_int8", call("round", scaled))
        each = call("to_int32", self._at("u", *row, self.t))
        return (
            self.activations(),
            Stage("top", row, call("absolute", x), (self.t,), "max"),
            Stage("inverse", row, inverse),
            Stage("unit", row, call("divide", top, float(LEVELS))),
            Stage("u", (*row, self.t), code, dtype="int8"),
            Stage("part", row, each, (self.t,), "sum", dtype="int32"),
        )

    def whole(self) -> tuple[Stage, ...]:
        """w; s[i, j, B] = sum of codes times codes; c the sum of those, less what the zero points
        add, times both scales."""
        row = (self.i, self.b)
        inner: tuple[Axis, ...] = (self.g, self.s)
        if self.products > 1:
            inner = (self.g, self.h, self.p)
            word = self._at("w", self.j, self.b, self.g, self.p)
            code = self._code(word, self.h.var, "uint8")
            place = self._word + self.h.var * self.bytes + self.p.var
        else:
            code = self._code(self._at("w", self.j, self.b, self.g), self.s.var, "int32")
            place = self._word + self.s.var
        u = load("u", *(a.var for a in row), place)
        product = call("multiply", call("to_int32", code), call("to_int32", u))
        excess = call("multiply", self._zero(), self._at("part", *row))
        exact = call("subtract", self._at("s", self.i, self.j, self.b), excess)
        scaled = call("multiply", call("to_float32", exact), self._at("unit", *row))
        return (
            self.words(),
            Stage("s", (self.i, self.j, self.b), product, inner, "sum", dtype="int32"),
            Stage("c", (self.i, self.j), call("multiply", scaled, self._scale()), (self.b,), "sum"),
        )
