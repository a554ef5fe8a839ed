"""Quantisation in the Python API: `tilesmith.quantize`."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from tilesmith.jobs.keywords import takes

if TYPE_CHECKING:
    from pathlib import Path

    from tilesmith.capabilities.quantisation.jobs import QuantisedModel
    from tilesmith.jobs.databases import Named
    from tilesmith.jobs.subjects.calibration_data import Data
    from tilesmith.jobs.subjects.subject import Model


class AskedOfQuantising(TypedDict, total=False):
    """Keywords of `tilesmith.quantize`; see `jobs.QuantiseRequest`."""

    method: str
    symmetric: bool
    operators: Sequence[str]
    keep: Sequence[str]
    budget: float | None
    minimise: str
    sensitivities: bool
    samples: int
    seed: int
    random: int
    shapes: Mapping[str, Sequence[Any]] | None
    threads: int
    weights: str
    block: int
    equalise: bool
    fuse_residuals: bool
    database: "Named"
    plan: "Mapping[str, str] | str | Path | None"


@takes(AskedOfQuantising)
def quantize(
    model: "Model",
    data: "Data | None" = None,
    *,
    observer: Callable[[str], None] = lambda text: None,
    **asked: Unpack[AskedOfQuantising],
) -> "QuantisedModel":
    """Quantise a float32 model by calibration data, as ONNX with Q/DQ pairs.

    Activations become uint8, one scale a tensor; weights int8, one scale an output channel; biases
    int32. `compile` takes the `model` of what comes back, onnxruntime its file.

    Args:
        model: path of an ONNX file, a loaded `onnx.ModelProto`, or a model of PyTorch.
        data: what the model sees when it is used: arrays by input name, an array of the only input,
            a `.npy`, an `.npz`, a folder of these, or a list of such. Samples lie along a further
            first axis, or several times along the first.
        observer: told in words what is being done.
        asked: how, by name:

            method: "minmax", "percentile:99.99" or "mse": how ranges follow from what is seen.
            symmetric: activations in int8 around zero.
            operators: quantise these alone, such as ("Conv", "Add").
            keep: names of nodes that stay in float32.
            budget: the greatest error allowed; the most sensitive layers stay in float32 for it.
            minimise: within the budget: "work" in float32; or "latency" or "size", with a precision
                for each layer out of fp32, bf16, int8 and int4 weights.
            sensitivities: find every layer's, without a budget too.
            samples, seed: how many of the data errors are measured on (16), and which.
            random: how many random samples stand in for data, to try it.
            shapes: of inputs with symbolic dimensions, as `compile`.
            threads: of the float32 model's runs.
            weights: "int4" or "int8": the weights of products alone, in blocks, as MatMulNBits; it
                needs no data.
            block: weights of a block, 32.
            equalise: balance channels between layers first, for models with depthwise convolutions.
            fuse_residuals: do not round what a layer adds to a residual; fp32 in onnxruntime. For
                latency and size it is so whatever is said.
            database: for latency: where kernels' times are looked up and kept, as for `tune`.
            plan: precisions by layer, or a file of them, to be taken as they are.

    Raises:
        InputError: no data, or data that does not fit or is not finite; an unknown node, operator
            or method; a plan of another model.
        DependencyError: precisions are to be chosen, and OR-tools is not installed.
        ModelError: the model cannot be read, is quantised already, or has nothing to quantise.
    """
    from tilesmith.capabilities.quantisation.jobs import QuantiseRequest, quantised_model

    return quantised_model(QuantiseRequest(model, data, **asked), observer)
