"""What compiling a module of PyTorch adds to its memory, and what passing tensors costs.

    python benchmarks/pytorch_memory.py

A table of embeddings and a chain of linear layers are compiled, each in a process of its own:
printed are the size of the parameters, what resident memory grew by, and its peak. Then a Relu is
called with tensors on cache lines, and with tensors beside them, which have to be copied: medians
of calls in turns.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

try:
    import torch
    from torch import nn

    import tilesmith as ts
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None


def embedding() -> tuple[nn.Module, torch.Tensor]:
    """A table of 100,000 x 1,024, and rows to look up."""
    return nn.Embedding(100_000, 1024), torch.zeros(4, dtype=torch.int64)


def linear() -> tuple[nn.Module, torch.Tensor]:
    """24 layers of 2,048 x 2,048, and what goes in."""
    layers = [nn.Linear(2048, 2048, bias=False) for _ in range(24)]
    return nn.Sequential(*layers), torch.zeros(4, 2048)


MODULES = {"embedding 100,000 x 1,024": embedding, "24 linear layers of 2,048 x 2,048": linear}


def resident() -> float:
    """MB of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def compiled(name: str) -> None:
    """Compile one module here and print what that took."""
    ts.from_torch(nn.ReLU(), (torch.zeros(4),))  # what is loaded once
    module, example = MODULES[name]()
    module.eval().requires_grad_(False)
    size = sum(p.nbytes for p in module.parameters()) / 1e6
    before = resident()
    found = ts.from_torch(module, (example,))
    after = resident()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    found(example)
    print(
        f"{name:36} {size:8.0f} MB {after - before:+8.0f} MB {peak - before:+8.0f} MB at its peak"
    )


def passed() -> None:
    """Time a Relu whose tensors pass as they are, and one whose tensors are copied."""
    elements = 16 << 20
    found = ts.from_torch(nn.ReLU(), (torch.zeros(elements),))
    memory = torch.randn(elements + 16)
    start = -memory.data_ptr() // 4 % 16
    tensors = {"on a cache line": memory[start : start + elements],
               "beside one": memory[(start + 1) % 16 :][:elements]}  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in tensors}
    for _ in range(15):
        for name, tensor in tensors.items():
            started = time.perf_counter()
            found(tensor)
            seconds[name].append(time.perf_counter() - started)
    for name, samples in seconds.items():
        print(f"Relu of 64 MiB, {name}: {statistics.median(samples) * 1e3:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module", nargs="?", choices=[*MODULES], help="this one alone")
    module = parser.parse_args().module
    torch.set_num_threads(1)
    if module:
        compiled(module)
        return
    for name in MODULES:
        subprocess.run([sys.executable, __file__, name], check=True)
    passed()


if __name__ == "__main__":
    main()
