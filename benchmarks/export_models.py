"""Export MobileNetV2, a transformer encoder and more networks with random weights to ONNX.

    pip install 'tilesmith[models]'
    python -m benchmarks.export_models --into models [--only NAME ...]

(As a module: run by its path, `benchmarks/kernels.py` would hide a package that transformers uses.)

MobileNetV2 is the standard one (width 1.0, 224 x 224, batch 1); the encoder is a BERT of 6 layers,
384 wide, 12 heads, sequence 128, batch 1, fed with embeddings of random tokens; the others are
those of `benchmarks/subjects/networks.py`. Weights are random, for speed does not depend on them;
batch-norm statistics are randomised too, so that folding them is tested.
"""

from __future__ import annotations

import argparse
from pathlib import Path

try:
    import torch
    from transformers import (
        BertConfig,
        BertModel,
        MobileNetV2Config,
        MobileNetV2ForImageClassification,
    )

    from benchmarks.subjects.networks import NETWORKS
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None


def mobilenet_v2() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], list[str]]:
    """MobileNetV2 1.0 at 224 x 224."""
    model = MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000))
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(layer.weight, 0.8, 1.2)
            torch.nn.init.normal_(layer.bias, std=0.1)
            layer.running_mean.normal_(std=0.1)
            layer.running_var.uniform_(0.8, 1.2)
    return _Logits(model), (torch.randn(1, 3, 224, 224),), ["pixels"]


def encoder() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], list[str]]:
    """Six BERT layers, 384 wide, on hidden states of shape (1, 128, 384)."""
    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        vocab_size=128, attn_implementation="eager",
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    return _Hidden(model.encoder), (torch.randn(1, 128, 384),), ["hidden"]


class _Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixels).logits


class _Hidden(torch.nn.Module):
    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.encoder(hidden).last_hidden_state


MODELS = {"mobilenet_v2": mobilenet_v2, "encoder": encoder, **NETWORKS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=Path("models"), help="folder to write to")
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args()
    folder: Path = arguments.into
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        make = MODELS[name]
        torch.manual_seed(0)
        model, example, names = make()
        path = folder / f"{name}.onnx"
        torch.onnx.export(
            model.eval(), example, str(path), input_names=names,
            external_data=False, dynamo=True, verbose=False,
        )  # fmt: skip
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
