"""Schedules: how a compute definition is to be run, as a list of named primitives.

A primitive is a frozen value that names a stage and its loops; a `Schedule` is a compute definition
and the primitives applied to it so far. Every method below returns a new schedule with one
primitive more; `lowering.lower` replays them into a `Program`. The same words serve all targets: a
`cache_write` into `register` makes a CPU's accumulator tile, into `psum` an accelerator's. Factors
may be symbols.

Each primitive shows its rewrite as `before --> after`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilesmith.search_space.expressions.expression import Expr, ExprLike, as_expr
from tilesmith.search_space.ir.program import LoopKind
from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.scheduling.layout import Layout


@dataclass(frozen=True)
class StagePrimitive:
    """A primitive that names the stage it is applied to."""

    stage: str


@dataclass(frozen=True)
class Split(StagePrimitive):
    """for i in n: s  -->  for outer in ceil(n/f): for inner in min(f, n - outer*f): s"""

    loop: str
    factor: Expr
    outer: str
    inner: str


@dataclass(frozen=True)
class Reorder(StagePrimitive):
    """for i: for j: for k: s  --(k, i)-->  for k: for j: for i: s   (those named change places)"""

    loops: tuple[str, ...]


@dataclass(frozen=True)
class Annotate(StagePrimitive):
    """for i: s  -->  parallel | vector | unroll | interleaved i: s

    Interleaved: an accelerator's engines take the instructions of several iterations in the order
    in which they become ready.
    """

    loop: str
    kind: LoopKind


@dataclass(frozen=True)
class Pipeline(StagePrimitive):
    """for i: load; compute  -->  the load of iteration i+depth-1 runs beside the compute of i"""

    loop: str
    depth: int


@dataclass(frozen=True)
class Rotate(StagePrimitive):
    """for i: t = ..; use t  -->  t has `places` places that iterations take in turn

    Without it, a tile has as many as the pipeline depth of the loop it is made in.
    """

    places: int


@dataclass(frozen=True)
class AssignEngine(StagePrimitive):
    """p[i] = x  -->  p[i] = x  @engine   (which engine of an accelerator executes the stage)

    Several, as "scalar|gpsimd", in an interleaved loop: whichever is free.
    """

    engine: str


@dataclass(frozen=True)
class ComputeAt(StagePrimitive):
    """produce p; for i: for j: use p[i..]  -->  for i: produce what i needs of p; for j: use

    `kept`: (stage, loop) around that loop, in an iteration of which others read p afterwards.
    """

    consumer: str
    loop: str
    scope: str = "local"
    kept: tuple[str, str] | None = None


@dataclass(frozen=True)
class ReverseComputeAt(StagePrimitive):
    """for i: for j: c = ..; for i: for j: e = f(c)  -->  for i: {for j: c = ..; for j: e = f(c)}

    Primitives on such an epilogue name its producer's loops.
    """

    producer: str
    loop: str
    scope: str = "local"


@dataclass(frozen=True)
class CacheWrite(StagePrimitive):
    """for i: for k: for j: c[i,j] += x
    -->  for i: allocate t[j] in scope; t = 0; for k: for j: t[j] += x; for j: c[i,j] = t[j]"""

    scope: str
    loop: str


@dataclass(frozen=True)
class CacheRead:
    """for i: s(a[i])  -->  for i: copy[i] = a[i]; for i: s(copy[i])   (copy: a stage in `scope`)

    Its elements are of `dtype`, which must hold all that a's can be; "": as a's are.
    """

    tensor: str
    reader: str
    name: str
    scope: str
    dtype: str = ""


@dataclass(frozen=True)
class CacheResult(StagePrimitive):
    """p[i] = f(i)  -->  name[i] = f(i); p[i] = name[i]   (name: a stage in p's place)"""

    name: str


@dataclass(frozen=True)
class Inline(StagePrimitive):
    """p[i] = f(i); c[i] = g(p[i])  -->  c[i] = g(f(i))"""


@dataclass(frozen=True)
class Rfactor(StagePrimitive):
    """s = sum_k x(k)  -->  r[v] = sum_o x(o*f + v); s = sum_v r[v]   (v: spatial, extent f)"""

    axis: str
    factor: Expr
    name: str


@dataclass(frozen=True)
class SetLayout:
    """t[i,j] in row-major order  -->  t in the given physical order, e.g. t[i/16, j, i%16]"""

    tensor: str
    layout: Layout


@dataclass(frozen=True)
class SetScope:
    """t in global memory  -->  t in the named memory (`hbm`, `sbuf`)"""

    tensor: str
    scope: str


@dataclass(frozen=True)
class CompileTime(StagePrimitive):
    """run: p = f(weights); use p  -->  once, at compile time: p = f(weights);  run: use p"""


@dataclass(frozen=True)
class Tensorize(StagePrimitive):
    """for i: for j: for k: s  -->  intrinsic: for i: for j: for k: s   (one target instruction)

    `initial` is the instruction that initialises an accumulator tile, where the stage has one.
    """

    loop: str
    intrinsic: str
    initial: str = ""


Primitive = (
    Split | Reorder | Annotate | Pipeline | Rotate | AssignEngine | ComputeAt | ReverseComputeAt
    | CacheWrite | CacheRead | CacheResult | Inline | Rfactor | SetLayout | SetScope | CompileTime
    | Tensorize
)  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """A compute definition and the primitives applied to it, in order."""

    compute: ComputeDefinition
    primitives: tuple[Primitive, ...] = ()

    def _with(self, *added: Primitive) -> "Schedule":
        return replace(self, primitives=(*self.primitives, *added))

    def split(self, stage: str, loop: str, factor: ExprLike, outer: str, inner: str) -> "Schedule":
        return self._with(Split(stage, loop, as_expr(factor), outer, inner))

    def reorder(self, stage: str, loops: Sequence[str]) -> "Schedule":
        return self._with(Reorder(stage, tuple(loops)))

    def vectorize(self, stage: str, loop: str) -> "Schedule":
        return self._with(Annotate(stage, loop, "vector"))

    def unroll(self, stage: str, *loops: str) -> "Schedule":
        return self._with(*(Annotate(stage, loop, "unroll") for loop in loops))

    def parallel(self, stage: str, *loops: str) -> "Schedule":
        return self._with(*(Annotate(stage, loop, "parallel") for loop in loops))

    def interleave(self, stage: str, loop: str) -> "Schedule":
        return self._with(Annotate(stage, loop, "interleaved"))

    def pipeline(self, stage: str, loop: str, depth: int) -> "Schedule":
        return self._with(Pipeline(stage, loop, depth))

    def rotate(self, stage: str, places: int) -> "Schedule":
        return self._with(Rotate(stage, places))

    def assign_engine(self, stage: str, engine: str) -> "Schedule":
        return self._with(AssignEngine(stage, engine))

    def compute_at(
        self,
        stage: str,
        consumer: str,
        loop: str,
        scope: str = "local",
        kept: tuple[str, str] | None = None,
    ) -> "Schedule":
        return self._with(ComputeAt(stage, consumer, loop, scope, kept))

    def reverse_compute_at(
        self, stage: str, producer: str, loop: str, scope: str = "local"
    ) -> "Schedule":
        return self._with(ReverseComputeAt(stage, producer, loop, scope))

    def cache_write(self, stage: str, scope: str, loop: str) -> "Schedule":
        return self._with(CacheWrite(stage, scope, loop))

    def cache_read(
        self, tensor: str, reader: str, name: str, scope: str = "global", dtype: str = ""
    ) -> "Schedule":
        return self._with(CacheRead(tensor, reader, name, scope, dtype))

    def cache_result(self, stage: str, name: str) -> "Schedule":
        return self._with(CacheResult(stage, name))

    def inline(self, stage: str) -> "Schedule":
        return self._with(Inline(stage))

    def rfactor(self, stage: str, axis: str, factor: ExprLike, name: str) -> "Schedule":
        return self._with(Rfactor(stage, axis, as_expr(factor), name))

    def set_layout(self, tensor: str, layout: Layout) -> "Schedule":
        return self._with(SetLayout(tensor, layout))

    def set_scope(self, tensor: str, scope: str) -> "Schedule":
        return self._with(SetScope(tensor, scope))

    def compile_time(self, stage: str) -> "Schedule":
        return self._with(CompileTime(stage))

    def tensorize(self, stage: str, loop: str, intrinsic: str, initial: str = "") -> "Schedule":
        return self._with(Tensorize(stage, loop, intrinsic, initial))

    def __str__(self) -> str:
        return "\n".join(str(primitive) for primitive in self.primitives)
