"""Decoding at the speed of memory: a quantised decoder against the bandwidth that is there.

    python benchmarks/decoding.py [--bits 4 8] [--cache 128 1024 4096] [--threads 1 2]
                                  [--prefill 512] [--products] [--layers 12] [--json]

A model of 0.6 G random weights (`decoding_model`) decodes one token behind a full cache. The bound
is the bytes that a token touches (codes, scales in 16 bits, which lose nothing here, keys and
values) over the bandwidth of reading 1 GiB, measured beside by a kernel that does nothing else.
Peers run the same file in turns with ours, on the same pinned cores: onnxruntime (MatMulNBits at
accuracy level 4, its cache shared between past and present) and OpenVINO (weights compressed,
activations quantised dynamically, the cache its state). All schedules are defaults, or of
`--database`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from subjects.decoding_model import Shape, inputs, model_file, product_model

import tilesmith
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_copy, aligned_empty
from tilesmith.codegen.native.kernel import NativeKernel, compile_program
from tilesmith.display.output import note, table
from tilesmith.jobs.measures.timing import interleave, pinned
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule

VECTORS = 8
STREAM_BYTES = 1 << 30

Arrays = dict[str, NDArray[Any]]
Call = Callable[[], object]


def stream(threads: int) -> Call:
    """A call that reads a GiB once and adds it up, in eight vectors at a time."""
    target = host_target()
    lanes = vector_width(target)
    steps = STREAM_BYTES // (threads * VECTORS * lanes * 4)
    s, v, lane = axis("s", steps), axis("v", VECTORS), axis("lane", lanes)
    source = Tensor("x", (steps, VECTORS, lanes), "int32")
    value = load("x", s.var, v.var, lane.var)
    total = Stage("y", (v, lane), value, (s,), "sum", dtype="int32")
    schedule = Schedule(ComputeDefinition("stream", (source,), (total,)))
    schedule = schedule.split("y", "v", VECTORS, "once", "v")
    schedule = schedule.reorder("y", ("once", "s", "v", "lane")).unroll("y", "v")
    schedule = schedule.vectorize("y", "lane").cache_write("y", "register", "once")
    calls = []
    for _ in range(threads):
        kernel = NativeKernel(compile_program(lower(schedule), target))
        x = aligned_empty(source.shape, np.dtype(np.int32))
        x.reshape(-1)[:: 1 << 10] = 1
        calls.append(kernel.bind({"x": x, "y": kernel.allocate_output()}))
    if threads == 1:
        return calls[0]
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(lambda call: call(), calls))


def ours(path: str, given: Arrays, threads: int, database: str | None) -> tuple[Call, Call]:
    """A call that runs the model, and one that gives its logits."""
    updates = {name: name.replace("past", "present") for name in given if "past" in name}
    found = tilesmith.compile(path, database=database, threads=threads, updates=updates)
    run = found.bind({name: aligned_copy(array) for name, array in given.items()})
    return run.run, lambda: run.outputs()[found.outputs[0].name]


def onnxruntime(path: str, given: Arrays, threads: int) -> tuple[Call, Call]:
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    values = {n: runtime.OrtValue.ortvalue_from_numpy(a.copy()) for n, a in given.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        shared = values.get(output.name.replace("present", "past"))
        if shared is None:
            binding.bind_output(output.name, "cpu")
        else:
            binding.bind_ortvalue_output(output.name, shared)
    return (
        lambda: session.run_with_iobinding(binding),
        lambda: binding.copy_outputs_to_cpu()[0],
    )


def openvino(path: str, given: Arrays, threads: int) -> tuple[Call, Call]:
    import openvino as runtime
    from openvino._offline_transformations import apply_make_stateful_transformation

    core = runtime.Core()
    model = core.read_model(path)
    past = {name: name.replace("past", "present") for name in given if "past" in name}
    if past:
        apply_make_stateful_transformation(model, past)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32,
        "ENABLE_CPU_PINNING": False,
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    for name, array in given.items():
        if name not in past:
            request.set_tensor(name, runtime.Tensor(array, shared_memory=True))
    for state in request.query_state():
        name = next(n for n in past if n in state.name)
        state.state = runtime.Tensor(given[name])
    return request.infer, lambda: request.get_output_tensor(0).data.copy()


PEERS = {"onnxruntime": onnxruntime, "openvino": openvino}


@dataclass(frozen=True)
class Figure:
    """Medians of one case, in milliseconds by contender; the bound, where memory is one."""

    case: str
    threads: int
    ms: Mapping[str, float]
    gigabytes: float
    bandwidth: float
    differs: Mapping[str, float]

    @property
    def bound_ms(self) -> float:
        return self.gigabytes / self.bandwidth * 1e3 if self.bandwidth else 0.0

    @property
    def row(self) -> list[str]:
        own = self.ms["tilesmith"]
        peers = [f"{self.ms[p]:.2f}" if p in self.ms else "-" for p in PEERS]
        rest = [ms for name, ms in self.ms.items() if name != "tilesmith"]
        ratio = f"{own / min(rest):.2f}" if rest else "-"
        share = f"{self.bound_ms / own:.0%}" if self.bandwidth else "-"
        bytes_, speed = f"{self.gigabytes:.3f}", f"{self.bandwidth:.1f}"
        return [
            self.case, str(self.threads), f"{own:.2f}", *peers, ratio, f"{1e3 / own:.1f}",
            bytes_, speed, share,
        ]  # fmt: skip


def measured(
    case: str, path: str, given: Arrays, gigabytes: float, asked: argparse.Namespace, threads: int
) -> Figure:
    """One case on pinned cores, contenders in turns."""
    with pinned(threads):
        made = {"tilesmith": ours(path, given, threads, asked.database)}
        for name in asked.peers:
            try:
                made[name] = PEERS[name](path, given, threads)
                made[name][0]()
            except Exception as error:  # each runtime has exceptions of its own
                note(f"{name} cannot run {case}: {str(error).splitlines()[0][:200]}")
                made.pop(name, None)
        calls = {name: call for name, (call, _) in made.items()}
        if gigabytes:
            calls["stream"] = stream(threads)
        taken = interleave(calls, asked.seconds)
    ms = {name: timing.median_ms for name, timing in taken.items()}
    wanted = np.asarray(made["tilesmith"][1]()).ravel()
    differs = {
        name: float(np.abs(np.asarray(result()).ravel() - wanted).max() / np.abs(wanted).max())
        for name, (_, result) in made.items()
        if name != "tilesmith"
    }
    speed = STREAM_BYTES / 1e6 / ms.pop("stream") if gigabytes else 0.0
    found = Figure(case, threads, ms, gigabytes, speed, differs)
    note(f"{' '.join(found.row)}  differs by {differs}")
    return found


def cases(asked: argparse.Namespace) -> list[Figure]:
    shape, found = Shape(layers=asked.layers), []
    for threads in asked.threads:
        for bits in asked.bits:
            for length in asked.cache:
                touched = (shape.weight_bytes(bits) + shape.cache_bytes(length)) / 1e9
                path = str(model_file(shape, bits, 1, length))
                given = inputs(shape, 1, length)
                name = f"int{bits}, cache {length}"
                found.append(measured(name, path, given, touched, asked, threads))
            for tokens in asked.prefill:
                path = str(model_file(shape, bits, tokens, tokens))
                given = inputs(shape, tokens, tokens)
                name = f"int{bits}, prefill {tokens}"
                found.append(measured(name, path, given, 0.0, asked, threads))
            for rows in asked.products:
                path, given = product_model(bits, rows, 4096)
                name = f"int{bits}, {rows}x4096x4096"
                found.append(measured(name, str(path), given, 0.0, asked, threads))
    return found


def main() -> None:
    os.environ.setdefault("TILESMITH_PACKS", "none")  # a pack may know these models
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bits", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--cache", type=int, nargs="*", default=[128, 1024, 4096])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--prefill", type=int, nargs="*", default=[512])
    parser.add_argument("--products", type=int, nargs="*", default=[1])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each case")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--database", default=None)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    asked.threads = [n for n in asked.threads if n <= len(os.sched_getaffinity(0))]
    found = cases(asked)
    if asked.json:
        json.dump([asdict(figure) for figure in found], sys.stdout, indent=1)
        return
    columns = [
        "case", "threads", "ms", *PEERS, "ratio", "a second", "GB", "GB/s", "of the bound",
    ]  # fmt: skip
    print(table(columns, [figure.row for figure in found]))


if __name__ == "__main__":
    main()
