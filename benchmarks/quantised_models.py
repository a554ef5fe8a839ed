"""Quantised models beside onnxruntime and OpenVINO, in one run each.

    python benchmarks/quantised_models.py --folder build/quantised [--seconds 60] [--only resnet50]

onnxruntime quantises: pairs of QuantizeLinear and DequantizeLinear (`quantize_static`, calibrated
with random samples, int8 weights with a scale for each channel), or scales found at run time
(`quantize_dynamic`). Networks are those of `models.py`, and an encoder of transformers' BERT (4
layers of width 768, sequence 128) as torch exports it, of which only products by weights are
quantised.

Printed for each, medians of turns taken in one run: our fp32 and int8, onnxruntime's and OpenVINO's
int8, and our int8 by the faster of those two; which part of the multiplications is of whole numbers
(those of float32 models: all); how often the greatest output is onnxruntime's and how often that of
our fp32 (20 random inputs); the largest error relative to the largest output, ours and theirs, both
against fp32. Below it stands why products did not become integer kernels. With --seconds the
kernels of the int8 model are tuned first.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

try:
    import models
    import numpy as np
    import onnx
    from numpy.typing import NDArray
    from onnx import version_converter
    from onnxruntime import quantization
    from onnxruntime.quantization import CalibrationDataReader, QuantType
    from onnxruntime.quantization.shape_inference import quant_pre_process

    import tilesmith
    from tilesmith.codegen.host.machine import host_target
    from tilesmith.compiler.driver.build import extract_tasks
    from tilesmith.compiler.onnx.importer import import_model
    from tilesmith.compiler.passes.integer_products import noting_unfolded
    from tilesmith.compiler.rewriting.graph_pass import observed
    from tilesmith.jobs.measures.peers import Contender, load_peer
    from tilesmith.jobs.measures.timing import interleave, pinned
    from tilesmith.search_space.workloads.template import template_of
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

OPSET = 17
AGREEMENT = 20
PRODUCTS = ("matmul", "conv2d", "depthwise_conv2d", "attention")

Arrays = dict[str, NDArray[Any]]


def bert() -> onnx.ModelProto:
    """An encoder of transformers' BERT on embeddings."""
    import torch
    from transformers import BertConfig, BertModel

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = BertConfig(num_hidden_layers=4, attn_implementation="eager")
            self.encoder = BertModel(config, add_pooling_layer=False).encoder

        def forward(self, x: torch.Tensor) -> Any:
            return self.encoder(x, return_dict=False)[0]

    torch.manual_seed(0)
    path = Path("bert.export.onnx")
    torch.onnx.export(
        Encoder().eval(), (torch.randn(1, 128, 768),), path, dynamo=False, opset_version=OPSET,
        input_names=["x"], output_names=["y"],
    )  # fmt: skip
    found = onnx.load(path)
    path.unlink()
    return found


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Random samples of a model's inputs."""

    def __init__(self, model: onnx.ModelProto, count: int = 4) -> None:
        self._samples = iter([inputs_of(model, seed) for seed in range(count)])

    def get_next(self) -> Arrays | None:
        return next(self._samples, None)


def inputs_of(model: onnx.ModelProto, seed: int) -> Arrays:
    rng = np.random.default_rng((9, seed))
    return {
        value.name: rng.standard_normal(
            [d.dim_value for d in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
    }


def static(model: onnx.ModelProto, source: Path, result: Path, **options: Any) -> None:
    """Pairs of quantising nodes around every operator, or around products by weights alone."""
    quantization.quantize_static(
        source, result, Samples(model), per_channel=True, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, **options,
    )  # fmt: skip


def weights_alone(model: onnx.ModelProto, source: Path, result: Path) -> None:
    options = {"MatMulConstBOnly": True}
    static(model, source, result, op_types_to_quantize=["MatMul", "Gemm"], extra_options=options)


def dynamic(model: onnx.ModelProto, source: Path, result: Path) -> None:
    quantization.quantize_dynamic(source, result, weight_type=QuantType.QInt8, per_channel=True)


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], Callable[..., None]]] = {
    "resnet50": (models.resnet50, static),
    "mobilenet_v2": (models.mobilenet_v2, static),
    "squeezenet": (models.squeezenet, static),
    "encoder": (models.encoder, static),
    "bert": (bert, weights_alone),
    "bert-dynamic": (bert, dynamic),
}


def files_of(name: str, folder: Path) -> tuple[Path, Path]:
    """The float32 model and its quantised form, made where they are missing."""
    plain, result = folder / f"{name}.onnx", folder / f"{name}.int8.onnx"
    if not result.exists():
        make, quantise = CASES[name]
        model = make()
        if model.opset_import[0].version < OPSET:  # scales along an axis are of opset 13 on
            model = version_converter.convert_version(model, OPSET)
        onnx.save(model, plain)
        ready = folder / f"{name}.ready.onnx"
        quant_pre_process(plain, ready)
        quantise(model, ready, result)
        ready.unlink()
    return plain, result


def integer_share(path: Path) -> tuple[float, Counter[str]]:
    """The part of a model's multiplications that is of whole numbers, and why not the rest."""
    reasons: dict[str, str] = {}
    with observed(noting_unfolded(reasons)):
        tasks = extract_tasks(import_model(path), host_target())
    total = whole = 0.0
    for task in tasks:
        if task.workload.operator in PRODUCTS:
            work = template_of(task.workload.operator).flops(task.workload) * task.weight
            total += work
            whole += work if task.workload.dtype == "uint8" else 0
    counted = Counter(f"{name.split()[0]}: {reason}" for name, reason in reasons.items())
    return whole / total if total else 1.0, counted


def measure(name: str, folder: Path, seconds: float, threads: int) -> float:
    """Print a model's line; our latency by the faster peer's."""
    plain, path = files_of(name, folder)
    database = folder / "tuning.db" if seconds else None
    if database is not None:
        tilesmith.tune(path, database=database, time_limit=seconds, threads=threads)
    model = onnx.load(plain)
    inputs = inputs_of(model, 100)
    share, reasons = integer_share(path)
    with pinned(threads):
        own = tilesmith.compile(path, database=database, threads=threads)
        before = tilesmith.compile(plain, threads=threads)
        bound, wide = own.bind(inputs), before.bind(inputs)
        peers = {n: load_peer(n, path, inputs, threads) for n in ("onnxruntime", "openvino")}
        calls = {"int8": bound.run, "fp32": wide.run, **{n: p.infer for n, p in peers.items()}}
        times = {n: t.median_ms for n, t in interleave(calls, 4.0).items()}
    ratio = times["int8"] / min(times["onnxruntime"], times["openvino"])
    print(
        f"{name:13} {times['fp32']:8.2f} {times['int8']:8.2f} {times['onnxruntime']:8.2f} "
        f"{times['openvino']:8.2f} {ratio:6.2f} {share:6.0%} {agreement(own, before, path, model)}"
    )
    for reason, count in reasons.items():
        print(f"{'':13} {count} {reason}")
    return ratio


def agreement(own: Any, before: Any, path: Path, model: onnx.ModelProto) -> str:
    """Greatest outputs that agree, and errors, over some inputs."""
    same_as_theirs = same_as_before = 0
    ours, theirs = 0.0, 0.0
    inputs = inputs_of(model, 200)
    peer: Contender = load_peer("onnxruntime", path, inputs, 1)
    for seed in range(AGREEMENT):
        for name, array in inputs_of(model, 200 + seed).items():
            np.copyto(inputs[name], array)
        peer.infer()
        (exact,), (found,) = before.run(inputs).values(), own.run(inputs).values()
        (other,) = peer.outputs().values()
        rows = [
            a.reshape(-1, a.shape[-1] if a.ndim == 3 else a.size) for a in (exact, found, other)
        ]
        tops = [row.argmax(axis=1) for row in rows]
        same_as_theirs += float(np.mean(tops[1] == tops[2]))
        same_as_before += float(np.mean(tops[1] == tops[0]))
        scale = float(np.abs(exact).max())
        ours = max(ours, float(np.abs(found - exact).max()) / scale)
        theirs = max(theirs, float(np.abs(other - exact).max()) / scale)
    return (
        f"{same_as_theirs / AGREEMENT:7.0%} {same_as_before / AGREEMENT:7.0%} "
        f"{ours:7.3f} {theirs:7.3f}"
    )


def main() -> None:
    os.environ.setdefault("TILESMITH_PACKS", "none")  # a pack may know these models
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("build/quantised"))
    parser.add_argument("--seconds", type=float, default=0.0, help="of tuning for each model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="models; all by default")
    parser.add_argument("--make", action="store_true", help="write the models, and stop")
    arguments = parser.parse_args()
    if find_spec("sympy") is None:
        raise SystemExit("onnxruntime needs sympy to quantise; install it: pip install sympy")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    names = arguments.only or list(CASES)
    for name in names:
        files_of(name, arguments.folder)
    if arguments.make:
        return
    print(
        f"{'ms':13} {'fp32':>8} {'int8':>8} {'onnxrt':>8} {'openvino':>8} {'ratio':>6} "
        f"{'whole':>6} {'=onnxrt':>7} {'=fp32':>7} {'error':>7} {'theirs':>7}"
    )
    ratios = [
        measure(name, arguments.folder, arguments.seconds, arguments.threads) for name in names
    ]
    print(f"geometric mean of ratios: {math.exp(np.mean(np.log(ratios))):.3f}")


if __name__ == "__main__":
    main()
