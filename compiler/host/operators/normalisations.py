"""Normalisations and selections along an axis on the host, in numpy, as old and new opsets say."""

import math
from typing import Any

import numpy as np
from onnx import helper

from tilesmith.compiler.host.operators.call import Array, OperatorCall, Results, host_operator


@host_operator("BatchNormalization")
def batch_normalization(call: OperatorCall) -> Results:
    """From opset 14 on `training_mode` says what is meant; before, one output is inference.

    Inference is y = (x - mean) / sqrt(variance + epsilon) scale + bias per channel; up to opset 8
    with `spatial` = 0 per element. Else the statistics are the batch's, and the outputs are y, the
    running mean and variance, and before opset 14 the batch's own.
    """
    x, scale, bias, mean, variance = call.inputs
    modern = call.opset >= 14
    training = bool(call.attributes.get("training_mode", 0)) if modern else call.outputs > 1
    if not training:
        return (_normalised(call, x, scale, bias, mean, variance),)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    wide = x.astype(np.float64)
    own_mean, own_variance = wide.mean(axes), wide.var(axes)
    kept = float(call.attributes.get("momentum", 0.9))
    running = [
        (old * kept + new * (1 - kept)).astype(old.dtype)
        for old, new in ((mean, own_mean), (variance, own_variance))
    ]
    y = _normalised(call, x, scale, bias, own_mean, own_variance)
    if modern:
        return (y, *running)[: call.outputs]
    return (y, *running, own_mean.astype(mean.dtype), own_variance.astype(mean.dtype))


@host_operator("LayerNormalization")
def layer_normalization(call: OperatorCall) -> Results:
    """Mean and spread of the axes from `axis` on, which are of the type that `stash_type` names:
    float32 unless it is another, whatever the input's."""
    x, scale = call.inputs[:2]
    bias = call.input(2)
    axes = tuple(range(int(call.attributes.get("axis", -1)) % x.ndim, x.ndim))
    wide = x.astype(np.float64)
    mean = wide.mean(axes, keepdims=True)
    variance = wide.var(axes, keepdims=True)
    spread = 1 / np.sqrt(variance + float(call.attributes.get("epsilon", 1e-5)))
    y = (wide - mean) * spread * scale.astype(np.float64)
    y = y if bias is None else y + bias.astype(np.float64)
    stashed = helper.tensor_dtype_to_np_dtype(int(call.attributes.get("stash_type", 1)))
    results = (y.astype(x.dtype), mean.astype(stashed), spread.astype(stashed))
    return results[: call.outputs]


def _normalised(call: OperatorCall, x: Array, *parameters: Array) -> Array:
    spread = (-1, *[1] * (x.ndim - 2)) if call.attributes.get("spatial", 1) else x.shape[1:]
    scale, bias, mean, variance = (p.astype(np.float64).reshape(spread) for p in parameters)
    factor = scale / np.sqrt(variance + float(call.attributes.get("epsilon", 1e-5)))
    return ((x - mean) * factor + bias).astype(x.dtype)


@host_operator("LogSoftmax")
def log_softmax(call: OperatorCall) -> Results:
    """Along `axis` (default -1), before opset 13 over all axes from it on (default 1), as one;
    `onnx.reference` takes the logarithm of what float16 rounds to 0."""
    (x,) = call.inputs
    modern = call.opset >= 13
    axis = int(call.attributes.get("axis", -1 if modern else 1))
    axis += x.ndim if axis < 0 else 0
    axes = (axis,) if modern else tuple(range(axis, x.ndim))
    wide = x.astype(np.result_type(x.dtype, np.float32))
    shifted = wide - wide.max(axes, keepdims=True, initial=-np.inf)
    return ((shifted - np.log(np.exp(shifted).sum(axes, keepdims=True))).astype(x.dtype),)


@host_operator("GroupNormalization")
def group_normalization(call: OperatorCall) -> Results:
    """Channels of a group share mean and variance; scale and bias are one a channel.

    Before opset 21 they are one a group (which `onnx.reference` does not know at all).
    """
    x, *parameters = call.inputs
    groups, channels = int(call.attributes["num_groups"]), x.shape[1]
    wide = x.reshape(x.shape[0], groups, -1).astype(np.result_type(x.dtype, np.float32))
    spread = np.sqrt(wide.var(-1, keepdims=True) + float(call.attributes.get("epsilon", 1e-5)))
    normal = ((wide - wide.mean(-1, keepdims=True)) / spread).reshape(x.shape)
    scale, bias = (
        np.repeat(p, channels // p.size).reshape(-1, *[1] * (x.ndim - 2)).astype(wide.dtype)
        for p in parameters
    )
    return ((normal * scale + bias).astype(x.dtype),)


@host_operator("Hardmax", before=13)
def flattened_hardmax(call: OperatorCall) -> Results:
    """Before opset 13: over all axes from `axis` (default 1) on, taken as one."""
    (x,) = call.inputs
    axis = int(call.attributes.get("axis", 1))
    axis += x.ndim if axis < 0 else 0
    flat = x.reshape(math.prod(x.shape[:axis]), -1)
    y = np.zeros_like(flat)
    if flat.size:
        np.put_along_axis(y, flat.argmax(axis=1)[:, None], 1, axis=1)
    return (y.reshape(x.shape),)


@host_operator("LRN")
def lrn(call: OperatorCall) -> Results:
    """x / (bias + alpha / size * the sum of squares over `size` channels around) ^ beta."""
    (x,) = call.inputs
    size = int(call.attributes["size"])
    wide: Any = np.result_type(x.dtype, np.float32)
    before = (size - 1) // 2
    sides = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(x.astype(wide) ** 2, sides)
    channels = x.shape[1]
    total = sum(squares[:, tap : tap + channels] for tap in range(size))
    share = float(call.attributes.get("alpha", 1e-4)) / size
    base = float(call.attributes.get("bias", 1.0)) + share * np.asarray(total)
    return ((x / base ** float(call.attributes.get("beta", 0.75))).astype(x.dtype),)


@host_operator("LpNormalization")
def lp_normalization(call: OperatorCall) -> Results:
    """x over its p-norm (p = 1 or 2) along `axis`; zero where the norm is.

    `onnx.reference` sums the numbers themselves where p is one.
    """
    (x,) = call.inputs
    axis, p = int(call.attributes.get("axis", -1)), int(call.attributes.get("p", 2))
    wide = x.astype(np.result_type(x.dtype, np.float32))
    norm = (np.abs(wide) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
    return (np.where(norm == 0, 0, wide / norm).astype(x.dtype),)


@host_operator("MeanVarianceNormalization")
def mean_variance_normalization(call: OperatorCall) -> Results:
    """(x - mean) / (standard deviation + 1e-9) over `axes`, in x's dtype.

    `onnx.reference` runs the function of float32 that the standard gives, on any type.
    """
    (x,) = call.inputs
    axes = tuple(int(axis) for axis in call.attributes.get("axes") or (0, 2, 3))
    wide = x.astype(np.result_type(x.dtype, np.float32))
    centred = wide - wide.mean(axis=axes, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=axes, keepdims=True))
    return ((centred / (spread + 1e-9)).astype(x.dtype),)
