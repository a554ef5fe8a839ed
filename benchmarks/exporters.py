"""Models as exporters, optimisers and quantisers write them: error and host nodes of each.

    pip install 'tilesmith[models]' onnxruntime
    python -m benchmarks.exporters --into exported [--only bert] [--ways qdq nbits]

Small models of transformers with random weights are exported by both of torch's exporters, then
treated as people treat them before they run them: by ONNX Runtime's own graph optimiser (level
extended), its optimiser for transformers, its quantisers (dynamic; static as pairs of quantising
nodes or as quantised operators; weights of 4 bits). Every file is compiled for this machine and
run beside ONNX Runtime on the same inputs. Printed: the operators of com.microsoft in it, the
largest error relative to the largest value, and the nodes left on the host with their operators.
Quantised results may differ by a step of their scale, so theirs is a coarser error.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import onnx
    import onnxruntime
    import torch
    from onnxruntime import quantization
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from torch import Tensor, nn

    import tilesmith
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A module, and arguments for it by name."""

    module: nn.Module
    inputs: dict[str, Tensor]


class Plain(nn.Module):
    """A model that takes and returns tensors only.

    Args:
        pick: which result of the model's is returned.
    """

    def __init__(self, model: Any, names: tuple[str, ...], pick: str) -> None:
        super().__init__()
        self.model, self.names, self.pick = model, names, pick

    def forward(self, *values: Tensor) -> Tensor:
        given = dict(zip(self.names, values, strict=True))
        found: Tensor = self.model(**given, **self.stated)[self.pick]
        return found

    @property
    def stated(self) -> dict[str, Any]:
        return {"use_cache": False} if hasattr(self.model.config, "use_cache") else {}


def _ids(*shape: int) -> Tensor:
    return torch.randint(3, 96, shape)


def bert(eager: bool) -> Subject:
    """Two layers, with a padding mask."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        attn_implementation="eager" if eager else "sdpa",
        vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 11:] = 0
    inputs = {
        "input_ids": _ids(2, 16), "attention_mask": mask, "token_type_ids": _ids(2, 16) % 2,
    }  # fmt: skip
    return Subject(Plain(model, tuple(inputs), "last_hidden_state"), inputs)


def gpt2(eager: bool) -> Subject:
    """Two layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=96,
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=4,
        attn_implementation="eager" if eager else "sdpa",
    )
    inputs = {"input_ids": _ids(2, 16), "attention_mask": torch.ones(2, 16, dtype=torch.int64)}
    return Subject(Plain(GPT2LMHeadModel(config), tuple(inputs), "logits"), inputs)


def llama(eager: bool) -> Subject:
    """Two layers, keys shared by pairs of heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        attn_implementation="eager" if eager else "sdpa",
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    inputs = {"input_ids": _ids(2, 16), "attention_mask": torch.ones(2, 16, dtype=torch.int64)}
    return Subject(Plain(LlamaForCausalLM(config), tuple(inputs), "logits"), inputs)


def resnet(eager: bool) -> Subject:
    """Two stages of bottlenecks."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], num_labels=10,
    )  # fmt: skip
    model = ResNetForImageClassification(config)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.8, 1.2)
    inputs = {"pixel_values": torch.randn(1, 3, 64, 64)}
    return Subject(Plain(model, tuple(inputs), "logits"), inputs)


SUBJECTS: dict[str, Callable[[bool], Subject]] = {
    "bert": bert, "gpt2": gpt2, "llama": llama, "resnet": resnet
}  # fmt: skip


KINDS = {"bert": "bert", "gpt2": "gpt2", "llama": "gpt_neox", "resnet": ""}
"""How the optimiser for transformers calls them."""


# -- exporters ----------------------------------------------------------------------------------
def _exported(subject: Subject, path: Path, exporter: str) -> None:
    """Write a model, its sizes fixed."""
    newest = exporter == "dynamo-23"
    torch.onnx.export(
        subject.module, tuple(subject.inputs.values()), str(path), dynamo=exporter != "older",
        input_names=list(subject.inputs), output_names=["y"], external_data=False,
        opset_version=23 if newest else 17 if exporter == "older" else 18, verbose=False,
    )  # fmt: skip


EXPORTERS = ("older", "dynamo", "dynamo-23")


# -- treatments ---------------------------------------------------------------------------------
class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, inputs: Arrays) -> None:
        self._left = [inputs]

    def get_next(self) -> Arrays | None:
        return self._left.pop() if self._left else None


def _plain(source: Path, target: Path, inputs: Arrays, kind: str) -> None:
    target.write_bytes(source.read_bytes())


def _extended(source: Path, target: Path, inputs: Arrays, kind: str) -> None:
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def _transformers(source: Path, target: Path, inputs: Arrays, kind: str) -> None:
    from onnxruntime.transformers.optimizer import optimize_model

    options = {"num_heads": 4, "hidden_size": 64}
    found = optimize_model(str(source), model_type=kind, opt_level=0, **options)
    found.save_model_to_file(str(target))


def _dynamic(source: Path, target: Path, inputs: Arrays, kind: str) -> None:
    quantization.quantize_dynamic(
        str(_inferred(source)), str(target), weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )  # fmt: skip


def _static(form: Any) -> Callable[[Path, Path, Arrays, str], None]:
    def write(source: Path, target: Path, inputs: Arrays, kind: str) -> None:
        quantization.quantize_static(
            str(_inferred(source)), str(target), _Samples(inputs), quant_format=form,
            per_channel=True, reduce_range=True, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )  # fmt: skip

    return write


def _nbits(source: Path, target: Path, inputs: Arrays, kind: str) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    found = MatMulNBitsQuantizer(onnx.load(str(source)), block_size=32, is_symmetric=False)
    found.process()
    found.model.save_model_to_file(str(target))


def _then_extended(first: Callable[..., None]) -> Callable[[Path, Path, Arrays, str], None]:
    def write(source: Path, target: Path, inputs: Arrays, kind: str) -> None:
        between = target.with_suffix(".first.onnx")
        first(source, between, inputs, kind)
        _extended(between, target, inputs, kind)

    return write


def _inferred(source: Path) -> Path:
    """As the quantisers want models: with shapes."""
    found = source.with_suffix(".shapes.onnx")
    quant_pre_process(str(source), str(found), skip_symbolic_shape=True, skip_optimization=True)
    return found


WAYS: dict[str, Callable[[Path, Path, Arrays, str], None]] = {
    "plain": _plain,
    "extended": _extended,
    "transformers": _transformers,
    "dynamic": _dynamic,
    "dynamic+extended": _then_extended(_dynamic),
    "transformers+dynamic": lambda s, t, i, k: _after_transformers(s, t, i, k),
    "qdq": _static(QuantFormat.QDQ),
    "qdq+extended": _then_extended(_static(QuantFormat.QDQ)),
    "qoperator": _static(QuantFormat.QOperator),
    "nbits": _nbits,
}


def _after_transformers(source: Path, target: Path, inputs: Arrays, kind: str) -> None:
    between = target.with_suffix(".first.onnx")
    _transformers(source, between, inputs, kind)
    _dynamic(between, target, inputs, kind)


QUANTISED = ("dynamic", "qdq", "qoperator")
"""Ways whose results are steps of a scale."""


# -- figures ------------------------------------------------------------------------------------
def _compared(path: Path, inputs: Arrays) -> tuple[float, Counter[str], int]:
    """Error, operators of host nodes, kernels."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )  # fmt: skip
    (wanted,) = session.run(None, inputs)
    executable = tilesmith.compile(path)
    (found,) = executable.run(inputs).values()
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    hosts = Counter(text.split()[0] for text in executable.report.host_nodes)
    report = executable.report
    return error, hosts, report.tuned + report.stale + report.fallback + report.default


def _treated(name: str, exporter: str, way: str, folder: Path) -> str:
    """One line: what was made, and how it runs."""
    torch.manual_seed(0)
    subject = SUBJECTS[name](exporter == "older")
    subject.module.eval()
    source, target = (folder / f"{name}.{exporter}{end}.onnx" for end in ("", f".{way}"))
    if not source.exists():
        _exported(subject, source, exporter)
    inputs = {key: value.numpy() for key, value in subject.inputs.items()}
    WAYS[way](source, target, inputs, KINDS[name])
    model = onnx.load(str(target))
    inputs = {value.name: inputs[value.name] for value in model.graph.input}
    nodes = Counter(node.op_type for node in model.graph.node if node.domain == "com.microsoft")
    error, hosts, kernels = _compared(target, inputs)
    limit = 0.1 if way.partition("+")[2] == "dynamic" or way.startswith(QUANTISED) else 1e-4
    verdict = "right" if error <= limit else "WRONG"
    return f"{verdict}  {error:8.1e}  {kernels:4d}  {_counted(hosts)}  {_counted(nodes)}"


def _counted(found: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(found.items())) or "none"


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=Path("exported"))
    parser.add_argument("--only", nargs="*", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--exporters", nargs="*", choices=EXPORTERS, default=list(EXPORTERS))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--verbose", action="store_true", help="show where a failure comes from")
    options = parser.parse_args(arguments)
    options.into.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    logging.getLogger().setLevel(logging.ERROR)
    failures = 0
    print("model  exporter  way: verdict  error  kernels  host nodes  operators of com.microsoft")
    for name in options.only:
        for exporter in options.exporters:
            for way in options.ways:
                if "transformers" in way and not KINDS[name]:
                    continue
                try:
                    line = _treated(name, exporter, way, options.into)
                except Exception as error:
                    line = f"FAILED  {type(error).__name__}: {' '.join(str(error).split())[:200]}"
                    if options.verbose:
                        traceback.print_exc()
                failures += not line.startswith("right")
                print(f"{name:7s}{exporter:10s}{way:21s}{line}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
