"""LPU-like chips: collectives by their schedules, and products over chips of a node.

    python benchmarks/accelerator/lpu_tensor_parallel.py [--set core.delay.link=270]

Collectives over 8 chips: cycles of the schedule, exact, beside the estimate and what the links of a
chip would take alone. Products `[64 x K][K x N]` in float16, tensor-parallel over 1 to 8 chips by
columns (results gathered), by rows (results summed) and with some rows of the other operand each
(results stay): cycles, and how many times as fast as one chip. Pipelines are `lpu_pipeline.py`'s.
"""

from __future__ import annotations

import argparse
import math

from tilesmith.codegen.programs.structures import default_of
from tilesmith.display.output import table
from tilesmith.families.lpu.codegen.dataflow import LANES
from tilesmith.families.lpu.simulator.execution.several import collective, node_of
from tilesmith.families.lpu.simulator.selected import scheduled
from tilesmith.families.lpu.simulator.tensor_parallel import EXTENTS, SPLITS, tensor_parallel
from tilesmith.search_space.meshes.mesh import CollectiveKind, Mesh, load_mesh
from tilesmith.search_space.support.errors import CodegenError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.collectives import collective_cost

KINDS: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = (5120, 81920, 1310720, 20971520)
PRODUCTS = ((2560, 2560), (5120, 5120), (5120, 10240))
CHIPS = 8


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    settings = dict(one.split("=", 1) for one in parser.parse_args().set)
    mesh = load_mesh("lpu1.node").with_settings(settings)
    print(f"over {CHIPS} chips; us: by the schedule, estimated, of links alone\n")
    rows = [collective_row(mesh, kind, size) for kind in KINDS for size in SIZES]
    print(table(("collective", "bytes", "cycles", "us", "estimate", "links"), rows))
    print("\n[64 x K][K x N], float16, weights resident\n")
    chips = tuple(range(2, CHIPS + 1))
    header = ("K", "N", "split", "one chip", *(f"{n} chips" for n in chips))
    print(table(header, [row for k, n in PRODUCTS for row in product_rows(mesh, k, n, chips)]))


def collective_row(mesh: Mesh, kind: CollectiveKind, size: int) -> tuple[object, ...]:
    """One collective over all chips."""
    made = collective(mesh, kind, size, CHIPS).schedule
    cost = collective_cost(mesh, kind, size, tuple(range(CHIPS))).seconds
    rounds = 2 if kind == "all_reduce" else 1
    vectors = math.ceil(math.ceil(size / (2 * LANES)) / CHIPS)
    links = rounds * vectors * 2 * made.chip.link_cycles / (made.chip.ghz * 1e3)
    return kind, size, made.cycles, f"{made.seconds * 1e6:.2f}", f"{cost * 1e6:.2f}", f"{links:.2f}"


def product_rows(mesh: Mesh, k: int, n: int, chips: tuple[int, ...]) -> list[tuple[object, ...]]:
    """One product, each way."""
    workload = Workload.parse(f"matmul m=64 n={n} k={k} dtype=float16 const=b")
    chip, flight = node_of(mesh, CHIPS)
    alone = scheduled(workload, chip.target, default_of(workload, chip.target)).cycles
    found: list[tuple[object, ...]] = []
    for split in SPLITS:
        cells = []
        for count in chips:
            whole = workload.integer(EXTENTS[split])
            if whole % count or (split == "rows" and n % (LANES * count)):
                cells.append("-")
                continue
            try:
                made, _ = tensor_parallel(workload, chip, count, flight, split)
            except CodegenError:
                cells.append("-")
                continue
            cycles = made.schedule.cycles
            cells.append(f"{cycles:,} ({alone / cycles:.2f})")
        found.append((k, n, split, f"{alone:,}", *cells))
    return found


if __name__ == "__main__":
    main()
