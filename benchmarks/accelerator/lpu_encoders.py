"""BERT-large's encoders in int8 over LPU-like chips, as many on each: latency, throughput, linear.

    python -m benchmarks.accelerator.lpu_encoders [--each 6] [--chips 1 4 8 16] [--whole]
        [--tokens 128] [--set KEY=VALUE]

The experiment of the makers' paper of 2022 (Abts et al., ISCA), which lets the number of encoders
grow with that of chips: so many on each of 1 to 16. With --whole the 24 encoders of BERT-large are
cut over 2, 4 and 8 chips instead, and refused where a chip's MEM does not hold its share. All
encoders are of one size, so that the stages of a pipeline are one program with other weights: it is
compiled from random weights, scheduled and checked once. Between two chips hidden states take one
link, while the next inference is computed; what the host quantises and lays out is not counted. The
estimate is the closed form over chains that `--fidelity analytical` gives, without ports or waits.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

try:
    import torch

    from benchmarks.accelerator.lpu_transformers import MODELS, exported
    from tilesmith import quantize
    from tilesmith.compiler.driver.build import build
    from tilesmith.compiler.onnx.importer import import_model
    from tilesmith.families.lpu.backend.chips.pipeline import ChipPipeline, ChipStage, Cutter
    from tilesmith.families.lpu.backend.programs.program import ChipProgram, segments
    from tilesmith.families.lpu.codegen.dataflow import LANES
    from tilesmith.families.lpu.simulator.analytical import estimate
    from tilesmith.search_space.expressions.dtypes import size_of
    from tilesmith.search_space.hardware.target import Target, load_target
    from tilesmith.search_space.support.errors import ModelError
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

LAYERS, WIDTH = 24, 1024
"""Of BERT-large."""


def stage(encoders: int, tokens: int, target: Target) -> tuple[ChipStage, int]:
    """A chip's encoders as a stage of a pipeline, and the closed form's estimate of its cycles.

    Raises:
        ModelError: MEM does not hold them.
    """
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        exported(MODELS["bert-large-encoder"][2](encoders, tokens), path)
        model = quantize(path, random=1, fuse_residuals=True).model
    recipe = build(import_model(model), target).recipe
    cutter = Cutter(recipe, target)
    began = time.perf_counter()
    programs = tuple(part for part in segments(recipe, target) if isinstance(part, ChipProgram))
    took = time.perf_counter() - began
    chains = sum(len(program.joined.flow.chains) for program in programs)
    text = f"{encoders} encoders: {chains:,} chains, scheduled and checked in {took:.0f} s"
    print(text, flush=True)
    vectors = tokens * -(-WIDTH // LANES) * size_of("float16")
    sent = vectors * cutter.chip.link_cycles
    told = sum(int(estimate(program.joined.flow, cutter.chip).cycles) for program in programs)
    return ChipStage(programs, cutter.weights(0, len(cutter.kernels)), sent), told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=6, help="encoders on a chip")
    parser.add_argument("--chips", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--whole", action="store_true", help="BERT-large over 2, 4 and 8 chips")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    target = load_target("lpu1").with_settings(settings)
    cases = [(arguments.each * chips, chips) for chips in arguments.chips]
    if arguments.whole:
        cases = [(LAYERS, chips) for chips in (8, 4, 2)]
    stages: dict[int, tuple[ChipStage, int]] = {}
    lines = []
    first = 0.0
    for encoders, chips in cases:
        each = encoders // chips
        try:
            if each not in stages:
                stages[each] = stage(each, arguments.tokens, target)
        except ModelError as error:
            print(f"{encoders} encoders over {chips} chips: {error}")
            continue
        one, told = stages[each]
        all_stages = (*[one] * (chips - 1), last(one))
        pipeline = ChipPipeline(
            all_stages, target.number("clock.ghz"), target.integer("delay.link")
        )
        rate = encoders * pipeline.per_second
        first = first or rate / chips
        lines.append(
            f"| {encoders} | {chips} | {one.weights / 2**20:.1f} | {one.cycles:,} "
            f"| {told / one.cycles:.0%} | {one.sent:,} "
            f"| {pipeline.latency / pipeline.ghz / 1e3:.1f} "
            f"| {pipeline.per_second:,.0f} | {rate:,.0f} | {rate / chips / first:.1%} |"
        )  # fmt: skip
    print("| encoders | chips | MiB a chip | cycles a stage | estimate | cycles of a transfer "
          "| latency, us | inferences/s | encoders/s | of linear |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))


def last(one: ChipStage) -> ChipStage:
    """The last stage, which sends nothing on."""
    return ChipStage(one.programs, one.weights, 0)


if __name__ == "__main__":
    main()
