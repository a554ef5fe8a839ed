"""How a checkpoint keeps its weights: `quantization_config` of a configuration, as a precision.

Kinds are those of transformers' quantisers, of vLLM's compressed tensors and NVIDIA's modelopt.
Scales of groups are not counted; four-bit floats take the room and the conversion of `int4`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tilesmith.capabilities.planning.architecture import Architecture
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.deployment import PRECISIONS, Precision
from tilesmith.search_space.support.errors import ModelError

Fields = Mapping[str, Any]

_FIELD = "quantization_config"


def stored_as(c: Configuration) -> str:
    """What the weights are kept as: a precision, a kind that is not known, or "" for as they were
    trained."""
    fields = c.fields.get(_FIELD)
    if fields is None:
        return ""
    if not isinstance(fields, Mapping):
        raise ModelError(f"'{c.source}': {_FIELD} = {fields!r}; an object is expected")
    kind = str(fields.get("quant_method") or _unnamed(fields))
    precision = _KINDS[kind](fields) if kind in _KINDS else ""
    return precision or _described(kind, fields)


def stored_precision(architecture: Architecture) -> Precision:
    """The precision in which a checkpoint keeps its weights, the default of a plan.

    Raises:
        ModelError: the checkpoint keeps them in a way that is not known.
    """
    stored = architecture.stored or "bf16"
    if stored not in PRECISIONS:
        raise ModelError(
            f"'{architecture.name}' keeps its weights as '{stored}' ({_FIELD}), which is not "
            f"known; say what to count them as with --weights {'|'.join(PRECISIONS)}"
        )
    return stored


def _unnamed(fields: Fields) -> str:
    """Files of early versions of bitsandbytes, which name no method, and of modelopt."""
    if "load_in_4bit" in fields or "load_in_8bit" in fields:
        return "bitsandbytes"
    return "modelopt" if "quant_algo" in fields else "nameless"


def _described(kind: str, fields: Fields) -> str:
    bits = fields.get("bits")
    return f"{kind}, {bits} bits" if bits is not None else kind


def _integers(fields: Fields) -> str:
    """By `bits` (gptq, awq, auto-round) or `nbits` (hqq)."""
    bits = fields.get("bits", fields.get("nbits", 4 if "quant_method" in fields else None))
    return {4: "int4", 8: "int8"}.get(bits, "") if isinstance(bits, int) else ""


def _bitsandbytes(fields: Fields) -> str:
    if fields.get("load_in_4bit") or fields.get("_load_in_4bit"):
        return "int4"
    return "int8" if fields.get("load_in_8bit") or fields.get("_load_in_8bit") else "bf16"


def _compressed(fields: Fields) -> str:
    """compressed-tensors: groups of layers, of which the first says what weights are."""
    groups = fields.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return ""
    bits, kind = weights.get("num_bits"), weights.get("type")
    narrow = "int4" if bits == 4 else ""
    return ("fp8" if kind == "float" else "int8") if bits == 8 else narrow


def _named(field: str) -> Callable[[Fields], str]:
    """By a field that names the numbers somewhere in its text."""

    def precision_of(fields: Fields) -> str:
        text = str(fields.get(field, "")).lower()
        for part, precision in _PARTS:
            if part in text:
                return precision
        return ""

    return precision_of


_PARTS = (
    ("w4a", "int4"), ("fp4", "int4"), ("int4", "int4"), ("uint4", "int4"), ("int8", "int8"),
    ("fp8", "fp8"), ("float8", "fp8"),
)  # fmt: skip

_KINDS: Mapping[str, Callable[[Fields], str]] = {
    "fp8": lambda fields: "fp8",
    "fbgemm_fp8": lambda fields: "fp8",
    "finegrained_fp8": lambda fields: "fp8",
    "mxfp4": lambda fields: "int4",
    "eetq": lambda fields: "int8",
    "gptq": _integers,
    "awq": _integers,
    "auto-round": _integers,
    "hqq": _integers,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "modelopt": _named("quant_algo"),
    "quanto": _named("weights"),
    "torchao": _named("quant_type"),
}
