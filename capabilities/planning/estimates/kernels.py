"""Rates of one core's kernels, played by the house's simulator: what estimates are made of.

A few kernels of each target are simulated once in a process: a product of one row (weights stream
from memory), products of many rows (the arithmetic's pace), a block of attention, softmax and
normalisation of one row and of many; of models that make no tokens, activations and sums, too.
Between and beyond them costs are taken to be proportional, which is what they are on machines that
work tile by tile; the start of a kernel is not in them, as a step's kernels prefetch.
Nothing here knows a family: whatever has a simulator has rates. A machine that cannot run one of
the kernels but products is taken to do them for nothing, attention as fast as products.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError, TargetError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulate

_DTYPES = ("bfloat16", "float16", "float32")
_DEPTHS = ("tensor.fp8_k_max", "tensor.rows")
_MANY, _WIDE = 1024, 4096
_BLOCK = 4 * 2048 * 4096 * 128
"""Additions and multiplications of a head's attention, 2048 queries by 4096 keys of 128
features: so many that transfers of short rows hide behind them."""


@dataclass(frozen=True)
class RowRate:
    """Work row by row: `one` second(s) for a row of 4096 numbers alone, `many` for 1024 of them."""

    one: float
    many: float

    def seconds(self, rows: float, width: float) -> float:
        """Seconds of `rows` rows; a few take as long as one, because they lie side by side."""
        return max(self.one * width / _WIDE, self.spread(rows, width))

    def spread(self, rows: float, width: float) -> float:
        """As `seconds`, where the numbers of one row may lie side by side, too."""
        return self.many * rows / _MANY * width / _WIDE


@dataclass(frozen=True)
class Rates:
    """One core's rates.

    Attributes:
        stream: bytes a second of weights that few rows are multiplied by.
        multiply: additions and multiplications a second of products of many rows.
        narrow: those of products of fp8 numbers.
        attend: those of fused attention, many queries by many keys.
        convert: seconds a number that changes its precision on the way to the multiplier.
        softmax, norm: rows of numbers.
    """

    stream: float
    multiply: float
    narrow: float
    attend: float
    convert: float
    softmax: RowRate
    norm: RowRate


@lru_cache(maxsize=64)
def rates_of(target: Target) -> Rates:
    """The rates of a target. The first call simulates for some tenths of a second.

    Raises:
        TargetError: the target cannot run the kernels they are made of.
    """
    dtype = _dtype(target)

    def between(less: str, more: str) -> float:
        """Seconds that the larger takes beyond the smaller, so that the cost of a start cancels."""
        times = [_seconds(f"{text} dtype={dtype}", target) for text in (less, more)]
        return max(times[1] - times[0], times[1] / 100)

    width = size_of(dtype)
    # Far apart: how one is cut into transfers moves the difference of neighbours by a fifth.
    streamed = between("matmul m=1 k=4096 n=2048 const=b", "matmul m=1 k=4096 n=8192 const=b")
    product = "matmul m={} k=2048 n=1024 const=b"
    multiplied = between(product.format(512), product.format(1024))
    multiply = 2 * 512 * 2048 * 1024 / multiplied
    block = "attention m=2048 n=4096 k=128 heads={}"
    attended = _or(lambda: between(block.format(1), block.format(2)), _BLOCK / multiply)
    passes = [f"elementwise shape={_MANY}x{_WIDE} expression={_chain(n)}" for n in (4, 8)]
    converted = _or(lambda: between(*passes), 0.0)
    return Rates(
        stream=6144 * 4096 * width / streamed,
        multiply=multiply,
        narrow=multiply * _deeper(target),
        attend=_BLOCK / attended,
        convert=converted / (4 * _MANY * _WIDE),
        softmax=_rows("softmax", target, dtype),
        norm=_rows("rms_norm", target, dtype),
    )


@lru_cache(maxsize=64)
def pointwise_rates(target: Target) -> tuple[float, float]:
    """Seconds a number of what reads one row, and two, for each that it writes: an activation and
    a sum. 0 on machines that have no schedule for them."""
    text = f"elementwise shape={_MANY}x{_WIDE} expression={{}} dtype={_dtype(target)}"
    one, two = (
        _or(partial(_seconds, text.format(expression), target), 0.0) / (_MANY * _WIDE)
        for expression in ("gelu(x0)", "add(x0,x1)")
    )
    return one, two


@lru_cache(maxsize=256)
def softmax_rate(target: Target, keys: int) -> float:
    """Seconds a score of many rows' softmax, of rows about as long: schedules of short rows and of
    long ones differ. 0 on machines that have no schedule for it."""
    width = min(_WIDE, 2 ** max(0, keys - 1).bit_length())
    text = f"softmax shape={_MANY * _WIDE // width}x{width} dtype={_dtype(target)}"
    return _or(partial(_seconds, text, target), 0.0) / (_MANY * _WIDE)


def _deeper(target: Target) -> float:
    """How many numbers of 8 bits a multiplier takes for one of 16 bits. Schedules do not use it, so
    it is not simulated: the rate of 16 bits is taken so many times."""
    if not all(name in target for name in _DEPTHS):
        return 1.0
    narrow, wide = map(target.number, _DEPTHS)
    return max(1.0, narrow / wide)


def _chain(links: int) -> str:
    """An expression of so many passes over its operand, two constants in each."""
    text = "x0"
    for _ in range(links):
        text = f"maximum(multiply({text},3),1)"
    return text


def _rows(operator: str, target: Target, dtype: str) -> RowRate:
    one, many = (
        _or(partial(_seconds, f"{operator} shape={rows}x{_WIDE} dtype={dtype}", target), 0.0)
        for rows in (1, _MANY)
    )
    return RowRate(one, many)


def _or(simulated: Callable[[], float], otherwise: float) -> float:
    """A time, or another on machines that have no schedule for the operator (a plain array)."""
    try:
        return simulated()
    except InputError:
        return otherwise


def _dtype(target: Target) -> str:
    """The first of 16 bits that the target multiplies, else float32."""
    for dtype in _DTYPES:
        try:
            _seconds(f"matmul m=1 k=128 n=128 dtype={dtype}", target)
        except InputError:
            continue
        return dtype
    raise TargetError(f"target '{target.name}' multiplies none of {', '.join(_DTYPES)}")


def _seconds(text: str, target: Target) -> float:
    return simulate(Workload.parse(text), target, None, "timeline").latency_us * 1e-6
