"""Timing a loaded kernel as it will run inside a model: weights cold, activations warm.

Inside a model every layer's weights were last touched one inference ago and are out of the caches,
while its input was written a moment ago. So before each sample the lines of the weights (and only
they) are flushed to memory; the run before has left the activations warm. The all-warm time is
taken too. Sample counts follow from the kernel's own speed: a fixed time for all, at least a few
samples.
"""

import ctypes
import math
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.machine import host_features

_COLD_SECONDS = 0.016
_WARM_SECONDS = 0.003
_HOPELESS_SECONDS = 0.004
_HOPEFUL = 1.2
"""Within this factor of the best known a kernel's time is wanted precisely."""
LOST, _FEWEST_LOST = 1.5, 2
"""Beyond this factor of the best known, twice, a kernel is not sampled further."""
_SURE, _FEWEST_SURE = 0.003, 8
"""Relative standard error of the median from which on more samples tell nothing, of so many."""
_FEWEST, _MOST = 5, 40
_FEWEST_WARM = 2
_PATIENCE = 10.0
"""Times the budget that undisturbed samples are waited for."""
_TRIES = 4
_FEWEST_DISTURBED, _LONGEST_DISTURBED = 3, 2.0
"""Of a kernel that is always interrupted so many samples are taken, unless they take as many
seconds: one says nothing of what others did to it."""
UNSTEADY = 0.25
"""From which `spread` on a result says more of the machine than of the kernel."""
_DOUBT_SECONDS = 2e-3
"""A kernel may be called slow after as long: where one takes microseconds a hiccup is no proof."""
_LINE = 64
_SWEEP = 64 << 20


class Loaded(Protocol):
    """A compiled kernel with its buffers bound.

    Attributes:
        weights: constant operands as the kernel reads them (packed).
    """

    weights: Sequence[NDArray[Any]]

    def call(self) -> None:
        """Run once, on the bound buffers."""
        ...

    def output(self) -> NDArray[Any]:
        """The output of the last run, logical layout."""
        ...


def once(kernel: Loaded) -> float:
    """Seconds of one run as things are."""
    start = time.perf_counter()
    kernel.call()
    return time.perf_counter() - start


def cold_once(kernel: Loaded) -> float:
    """Seconds of one run with cold weights."""
    flush(kernel.weights)
    return once(kernel)


def glance(kernel: Loaded, sample: Callable[[Loaded], float] = once) -> float:
    """Seconds of the faster of two runs, of a few more if each was interrupted."""
    fastest = sample(kernel)
    for _ in range(_TRIES):
        seconds, clean = _watched(kernel, sample)
        fastest = min(fastest, seconds)
        if clean:
            break
    return fastest


def within(kernel: Loaded, limit: float) -> float:
    """Seconds of the fastest of a few runs, which end with the first within `limit` seconds.

    None is within it only after a glance at least, and `_DOUBT_SECONDS` of them.
    """
    start = time.perf_counter()
    fastest = once(kernel)
    while fastest > limit:
        fastest = min(fastest, glance(kernel, once))
        if time.perf_counter() - start >= _DOUBT_SECONDS:
            break
    return fastest


def samples(kernel: Loaded, incumbent: float | None = None) -> tuple[list[float], list[float]]:
    """Latencies in seconds: with cold weights and warm activations, and with everything warm.

    A kernel that is clearly slower than the incumbent (seconds) is sampled for a shorter time.
    """
    best = math.inf if incumbent is None else incumbent
    cold = _sampled(kernel, cold_once, _COLD_SECONDS, best=best)
    if min(cold) > _HOPEFUL * best:
        return cold, _sampled(kernel, once, 0.0, fewest=1)
    return cold, _sampled(kernel, once, _WARM_SECONDS, fewest=_FEWEST_WARM)


def in_turns(kernels: Sequence[Loaded], rounds: int = 15) -> list[list[float]]:
    """Cold-weight samples of rivals, one each in turn, so that drift hits all alike.

    Each is run once untimed before its sample: the rivals have pushed its activations out.
    """
    taken: list[list[float]] = [[] for _ in kernels]
    for _ in range(rounds):
        for kernel, mine in zip(kernels, taken, strict=True):
            tries = []
            for _ in range(_TRIES):
                kernel.call()
                seconds, clean = _watched(kernel, cold_once)
                tries.append(seconds)
                if clean:
                    break
            mine.append(seconds if clean else min(tries))
    return taken


def _sampled(
    kernel: Loaded,
    sample: Callable[[Loaded], float],
    budget: float,
    fewest: int = _FEWEST,
    best: float = math.inf,
) -> list[float]:
    """Samples for about `budget` seconds; longer, within limits, where others interfere.

    Disturbed samples are given only if there was no other (a kernel longer than a time slice).
    The budget is `_HOPELESS_SECONDS` where all are clearly above `best` seconds, or agree; and
    nothing where they are far above it.
    """
    undisturbed: list[float] = []
    disturbed: list[float] = []
    start = time.perf_counter()
    while len(undisturbed) < _MOST:
        spent = time.perf_counter() - start
        if len(undisturbed) >= _FEWEST_LOST and min(undisturbed) > LOST * best:
            break
        if len(undisturbed) >= fewest:
            enough = min(undisturbed) > _HOPEFUL * best or _is_sure(undisturbed)
            if spent >= budget or (enough and spent >= _HOPELESS_SECONDS):
                break
        taken = len(undisturbed) + len(disturbed)
        patient = taken < _FEWEST_DISTURBED and spent < _LONGEST_DISTURBED
        if spent >= max(budget, _WARM_SECONDS) * _PATIENCE and taken and not patient:
            break
        seconds, clean = _watched(kernel, sample)
        (undisturbed if clean else disturbed).append(seconds)
        if not clean:
            kernel.call()  # whoever took the core has filled the caches
    return undisturbed or sorted(disturbed)[:fewest]


def _is_sure(samples: Sequence[float]) -> bool:
    """Whether the median of samples is known as well as it need be."""
    if len(samples) < _FEWEST_SURE or min(samples) <= 0:
        return False
    return uncertainty([math.log(seconds) for seconds in samples]) <= _SURE


def uncertainty(logs: Sequence[float]) -> float:
    """Standard error of the median of some readings, by their median absolute deviation.

    The factors are those of a normal distribution: Rousseeuw and Croux, JASA 1993.
    """
    middle = statistics.median(logs)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in logs)
    return 1.2533 * deviation / math.sqrt(len(logs))


def spread(samples: Sequence[float]) -> float:
    """How far the usual sample is from the fastest, relative: noise only ever adds to a time."""
    return statistics.median(samples) / min(samples) - 1


def _watched(kernel: Loaded, sample: Callable[[Loaded], float]) -> tuple[float, bool]:
    """A sample, and whether this thread kept its core meanwhile."""
    before = interruptions()
    seconds = sample(kernel)
    return seconds, interruptions() == before


def interruptions() -> int:
    """How often the system has taken this thread off its core; 0 where it does not tell."""
    which = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if which is None else resource.getrusage(which).ru_nivcsw


def flush(arrays: Sequence[NDArray[Any]]) -> None:
    """Push the cache lines of `arrays` out to memory."""
    global _flushing
    start, flusher = time.perf_counter(), _flusher()
    if flusher is None:
        if arrays:
            _sweep_buffer().sum()
    else:
        for array in arrays:
            flusher(array.ctypes.data, array.nbytes)
    _flushing += time.perf_counter() - start


_flushing = 0.0


def flushing() -> float:
    """Seconds that this process has spent on flushing so far."""
    return _flushing


@cache
def _sweep_buffer() -> NDArray[np.float64]:
    """Read in full, it takes the place of whatever was cached."""
    return np.ones(_SWEEP // 8)


_FLUSH_ORDERED, _FLUSH_UNORDERED = "llvm.x86.sse2.clflush", "llvm.x86.clflushopt"
"""Where the first waits for each line before the next, the second has many on their way at once."""

_FLUSH_X86 = """
target triple = "{triple}"
declare void @{instruction}(ptr)
declare void @llvm.x86.sse2.mfence()
define void @flush(i64 %start, i64 %bytes) {{
entry:
  %stop = add i64 %start, %bytes
  %first = and i64 %start, -{line}
  br label %loop
loop:
  %at = phi i64 [ %first, %entry ], [ %next, %body ]
  %more = icmp ult i64 %at, %stop
  br i1 %more, label %body, label %done
body:
  %pointer = inttoptr i64 %at to ptr
  call void @{instruction}(ptr %pointer)
  %next = add i64 %at, {line}
  br label %loop
done:
  call void @llvm.x86.sse2.mfence()
  ret void
}}
"""


@cache
def _flusher() -> Callable[[int, int], None] | None:
    """A compiled loop of cache-line flushes, or None where the machine has no such instruction."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    if not triple.startswith(("x86_64", "amd64")):
        return None
    machine, instruction = llvm.Target.from_triple(triple).create_target_machine(), _FLUSH_ORDERED
    if host_features().get("clflushopt"):
        machine = llvm.Target.from_triple(triple).create_target_machine(features="+clflushopt")
        instruction = _FLUSH_UNORDERED
    text = _FLUSH_X86.format(triple=triple, line=_LINE, instruction=instruction)
    module = llvm.parse_assembly(text)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    address = engine.get_function_address("flush")
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address)
    _keep_alive.append(engine)
    return function


_keep_alive: list[Any] = []
"""The engine owns the code that `_flusher` hands out."""
