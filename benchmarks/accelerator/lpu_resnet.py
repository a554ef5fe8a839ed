"""ResNet-50 in int8, batch 1, whole on an LPU-like chip: scheduled, checked, and layer by layer.

    python benchmarks/accelerator/lpu_resnet.py [--model M] [--built] [--round-sums] [--set K=V ...]

The network that the onnx package ships, or with --built that of `resnets` (resnet50, resnet101,
resnet152), with seeded random weights, quantised on one random sample: numbers are worth nothing,
shapes are real. What a layer adds to a residual is not rounded to bytes before it is added, as
`--precision int8` has it; with --round-sums it is, as files have it that other runtimes run. A
layer's cycles are those from the last result before it to its own, so that they sum to the whole.
The chip's makers report 49.0 us (ISCA 2020).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

try:
    import onnx

    from benchmarks.accelerator.subjects.resnets import resnet
    from tilesmith import quantize
    from tilesmith.compiler.driver.build import build
    from tilesmith.compiler.onnx.importer import import_model
    from tilesmith.compiler.recipe.program import HostStep
    from tilesmith.families.lpu.backend.programs.model import shown_times
    from tilesmith.families.lpu.backend.programs.program import ChipProgram, segments
    from tilesmith.families.lpu.simulator.shares import shares
    from tilesmith.jobs.subjects.light_models import save_light_model
    from tilesmith.search_space.hardware.target import load_target
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

PUBLISHED_US = 49.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50", help="a light model's name")
    parser.add_argument("--built", action="store_true", help="a ResNet built here, by its name")
    parser.add_argument("--round-sums", action="store_true", help="round what is added, too")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    target = load_target("lpu1").with_settings(settings)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "model.onnx"
        if arguments.built:
            onnx.save(resnet(arguments.model), plain)
        else:
            plain = save_light_model(arguments.model, plain)
        quantised = quantize(plain, random=1, fuse_residuals=not arguments.round_sums).model
    recipe = build(import_model(quantised), target).recipe
    began = time.perf_counter()
    parts = segments(recipe, target)
    took = time.perf_counter() - began
    host = [part.name for part in parts if isinstance(part, HostStep)]
    programs = [part for part in parts if isinstance(part, ChipProgram)]
    for program in programs:
        layers(program)
    cycles = sum(program.schedule.cycles for program in programs)
    us = sum(program.schedule.seconds for program in programs) * 1e6
    busy = sum(shares(p.schedule)["mxm"] * p.schedule.cycles for p in programs) / cycles
    print(f"{cycles} cycles, {us:.1f} us, {us / PUBLISHED_US:.2f} of {PUBLISHED_US} us")
    print(f"MXM's planes are busy for {busy:.1%}, or {busy * cycles:.0f} cycles")
    print(f"{len(host)} steps on the host; scheduled and checked in {took:.0f} s")


def layers(program: ChipProgram) -> None:
    """Cycles of each layer."""
    chip = program.schedule.chip
    print(" cycles  layer")
    for step, us in zip(program.steps, shown_times(program), strict=True):
        print(f"{round(us * chip.ghz * 1e3):7d}  {step.workload.split(' const=')[0]}")


if __name__ == "__main__":
    main()
