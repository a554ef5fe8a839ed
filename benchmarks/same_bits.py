"""Whether configurations of workloads with sums=same compute equal bits, whatever else differs.

    python -m benchmarks.same_bits [--configs 200] [--only OPERATOR ...] [--seed 0] [--json]

Each workload is computed by its default and by random configurations of its space, every third on
two and on three threads, too. The outputs are compared to the bit with the first. Where a
workload has a batch, the batch is cut into parts of 1, which random configurations compute. Beside
it stands how many different outputs 20 configurations without sums=same give.
"""

import argparse
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_bytes, aligned_copy
from tilesmith.codegen.native.kernel import ENTRY, NativeKernel, compile_config
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.display.output import table
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError, ScheduleError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.checking import random_inputs

Arrays = Mapping[str, NDArray[Any]]

_WITHOUT = 20
"""Configurations of the whole space, which show that there are other bits."""

WORKLOADS = (
    "matmul m=37 n=83 k=129 const=b epilogue=bias,gelu",
    "matmul m=1 n=200 k=300 const=b",
    "matmul m=20 n=40 k=70 batch=3 tb=1",
    "matmul m=33 n=40 k=70 ta=1 dtype=bfloat16",
    "matmul m=33 n=40 k=70 dtype=bfloat16 const=b",
    "conv2d n=4 c=5 h=9 w=11 oc=20 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
    "conv2d n=4 c=40 h=14 w=14 oc=48 kh=3 kw=3 pad=1 const=weight epilogue=bias,residual,relu",
    "conv2d n=2 c=33 h=8 w=9 oc=24 kh=3 kw=3 pad=1 stride=2 const=weight",
    "conv2d n=2 c=48 h=7 w=7 oc=40 kh=1 kw=1 const=weight epilogue=bias,residual,relu",
    "conv2d n=2 c=6 h=9 w=9 oc=9 kh=3 kw=3 groups=3 pad=1x0x0x1 epilogue=bias",
    "depthwise_conv2d n=2 c=20 h=9 w=11 kh=5 kw=5 pad=2 const=weight epilogue=bias,relu",
    "attention m=19 n=33 k=7 batch=2 heads=2",
    "attention m=70 n=140 k=32 v=33 batch=2 mask=full",
    "attention m=1 n=77 k=32 heads=2",
    "softmax shape=6x64",
    "softmax shape=5x300",
    "softmax shape=2x11x19 axis=1",
    "softmax shape=6x131 log=1",
    "layer_norm shape=5x37",
    "layer_norm shape=6x600 const=bias,scale epilogue=bias",
    "rms_norm shape=6x200",
    "reduce shape=5x237 axes=1",
    "reduce shape=37x50 kind=mean axes=0 keepdims=0",
    "reduce shape=2x3x5x70 kind=product axes=0x3",
    "cumulative_sum shape=5x70 axis=1",
    "pool2d kind=average n=2 c=20 h=9 w=9 kh=3 kw=3 stride=2 pad=1",
    "pool2d kind=average n=2 c=20 h=9 w=9 global=1",
    "block_quantised_matmul m=5 n=48 k=128 block=32 const=b,scales",
)

BATCHES = {
    "conv2d": "n",
    "depthwise_conv2d": "n",
    "pool2d": "n",
    "matmul": "m",
    "attention": "batch",
}
"""The parameter of operators that is a batch, and the first axis of the first input."""


def computed(
    workload: Workload, target: Target, config: Config, arrays: Arrays, threads: int = 1
) -> NDArray[Any]:
    """What a configuration computes on so many threads, in logical layout."""
    template = template_of(workload.operator)
    layouts = template.layouts(workload, config)
    kernel = compile_config(workload, target, config)
    first, *_ = template.inputs(workload)
    shape = template.output(workload).shape
    given = {}
    for operand in template.operands(workload):
        array, layout = arrays[operand.name], ""
        if operand.name == first.name:
            layout = layouts[0]
        elif operand.role == "epilogue" and operand.shape == shape:
            layout = layouts[1]
        given[operand.name] = aligned_copy(Layout.parse(layout).pack(array) if layout else array)
    given |= kernel.prepare(given)
    output = kernel.allocate_output()
    on_threads(kernel, {**given, kernel.output.name: output}, threads)
    if layouts[1]:
        layout = Layout.parse(layouts[1])
        return layout.unpack(output.reshape(layout.concrete_shape(shape)), shape)
    return output.reshape(shape)


def on_threads(kernel: NativeKernel, arrays: Arrays, threads: int) -> None:
    """Call a kernel from so many threads, as a compiled model's driver does."""
    pointers, entry = kernel.pointers(arrays), ENTRY(kernel.address)
    barrier, shared = aligned_bytes(128), aligned_bytes(max(64, kernel.code.shared_bytes))
    local = [aligned_bytes(max(64, kernel.code.local_bytes)) for _ in range(threads)]

    def work(thread: int) -> None:
        own = local[thread].ctypes.data
        entry(pointers, thread, threads, barrier.ctypes.data, shared.ctypes.data, own)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def outputs(
    workload: Workload, target: Target, arrays: Arrays, configs: list[Config]
) -> Iterator[tuple[bytes, str]]:
    """The bits of the output of each configuration, and in words how it came to be."""
    for number, config in enumerate(configs):
        for threads in (1, 2, 3) if number % 3 == 0 else (1,):
            try:
                output = computed(workload, target, config, arrays, threads)
            except (CodegenError, ScheduleError):
                break
            yield output.tobytes(), f"{config} on {threads} threads"


def parts(workload: Workload, arrays: Arrays) -> Iterator[tuple[Workload, Arrays]]:
    """A batch as parts of 1, where every input that has the batch has it first."""
    name = BATCHES.get(workload.operator, "")
    if not name or workload.integer(name) == 1 or dict(workload.parameters).get("ta"):
        return
    whole, batch = template_of(workload.operator), workload.integer(name)
    part = workload.with_parameters(**{name: 1})
    operands = template_of(part.operator).operands(part)
    for index in range(batch):
        given = {}
        for operand, before in zip(operands, whole.operands(workload), strict=True):
            array = arrays[operand.name]
            for axis, (now, full) in enumerate(zip(operand.shape, before.shape, strict=True)):
                if now != full:
                    array = np.take(array, [index], axis)
            given[operand.name] = np.ascontiguousarray(array)
        yield part, given


def drawn(workload: Workload, target: Target, count: int, rng: np.random.Generator) -> list[Config]:
    """The default, and random configurations that differ, as many as there are."""
    sample = space_of(workload, target).sample(rng, 4 * count)
    return list(dict.fromkeys([default_of(workload, target), *sample]))[:count]


def measured(text: str, target: Target, count: int, seed: int) -> dict[str, Any]:
    """How many different outputs a workload's configurations give, with sums=same and without."""
    rng = np.random.default_rng(seed)
    usual = Workload.parse(text)
    workload = Workload.parse(f"{text} sums=same")
    arrays = random_inputs(usual)
    configs = drawn(workload, target, count, rng)
    counted: dict[bytes, list[str]] = {}
    for bits, words in outputs(workload, target, arrays, configs):
        counted.setdefault(bits, []).append(words)
    first = computed(workload, target, configs[0], arrays)
    split = 0
    for index, (part, given) in enumerate(parts(workload, arrays)):
        config = drawn(part, target, 2, rng)[-1]
        output = computed(part, target, config, given)
        axis = next(a for a, (x, y) in enumerate(zip(output.shape, first.shape, strict=True))
                    if x != y)  # fmt: skip
        if np.take(first, [index], axis).tobytes() != output.tobytes():
            split += 1
    others = drawn(usual, target, min(count, _WITHOUT), rng)
    free = {bits for bits, _ in outputs(usual, target, arrays, others)}
    return {
        "workload": text,
        "configurations": len(configs),
        "outputs": len(counted),
        "unequal parts": split,
        "without": len(free),
        "of the space": space_of(workload, target).size / space_of(usual, target).size,
        "examples": [words[0] for words in counted.values()][:4] if len(counted) > 1 else [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    target = host_target()
    rows = []
    for text in WORKLOADS:
        if options.only and text.split()[0] not in options.only:
            continue
        row = measured(text, target, options.configs, options.seed)
        rows.append(row)
        if not options.json:
            print(
                *(row[k] for k in row if k != "examples"), *row["examples"], sep=" | ", flush=True
            )
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    names = [name for name in rows[0] if name != "examples"] if rows else []
    print(table(names, [[row[name] for name in names] for row in rows]))


if __name__ == "__main__":
    main()
