"""A detection model whose boxes go through NonMaxSuppression.

PyTorch has no such operator of its own: the network is a module; `with_suppression` appends to its
ONNX form what an exporter of detectors writes.
"""

from __future__ import annotations

import onnx
import torch
from case import Case, family
from onnx import TensorProto, helper
from torch import Tensor, nn

CLASSES = 5


def _block(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()
    )


class Detector(nn.Module):
    """One scale of a YOLO: (n, 3, h, w) -> boxes (n, h*w/64, 4) and scores (n, classes, h*w/64)."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(_block(3, 16, 2), _block(16, 32, 2), _block(32, 64, 2))
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.neck = _block(128, 64, 1)
        self.head = nn.Conv2d(64, 4 + CLASSES, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """See the class."""
        features = self.backbone(image)
        features = self.neck(torch.cat([features, self.pool(features)], 1))
        found = self.head(features).flatten(2)
        centre, size = found[:, :2].sigmoid(), found[:, 2:4].sigmoid() * 0.5
        boxes = torch.cat([centre - size / 2, centre + size / 2], 1).transpose(1, 2)
        return boxes, found[:, 4:].sigmoid()


@family
def detector() -> Case:
    """A small YOLO; in ONNX with NonMaxSuppression at its end."""
    return Case("detector", Detector(), {"image": torch.randn(1, 3, 64, 64)})


def with_suppression(model: onnx.ModelProto) -> onnx.ModelProto:
    """boxes, scores -> boxes, scores, NonMaxSuppression(boxes, scores)."""
    boxes, scores = (value.name for value in model.graph.output)
    for name, dtype, value in (
        ("most", TensorProto.INT64, 10), ("overlap", TensorProto.FLOAT, 0.5),
        ("least", TensorProto.FLOAT, 0.4),
    ):  # fmt: skip
        model.graph.initializer.append(helper.make_tensor(name, dtype, [1], [value]))
    model.graph.node.append(
        helper.make_node("NonMaxSuppression", [boxes, scores, "most", "overlap", "least"], ["kept"])
    )
    model.graph.output.append(helper.make_tensor_value_info("kept", TensorProto.INT64, ["n", 3]))
    return model
