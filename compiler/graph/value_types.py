"""Types of values that no kernel touches: texts, sequences, optional values.

They stand where a tensor's element type stands, as a text: "string", "sequence(float32)",
"optional(sequence(int64))". Such values are Python's own on the host: arrays of `str` (dtype
object), lists, None. Invariant: `value_type` gives what `is_value_type` takes.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import STORED, to_numpy

if TYPE_CHECKING:
    import onnx

STRING = "string"
_HOLDERS = ("sequence", "optional")


def is_value_type(text: str) -> bool:
    """Whether a text names the type of a value that only the host holds."""
    inner = _inner(text)
    return text == STRING or inner in (*STORED, "") or (inner is not None and is_value_type(inner))


def _inner(text: str) -> str | None:
    """What a sequence or an optional value holds; None where the text names neither."""
    for holder in _HOLDERS:
        if text.startswith(f"{holder}(") and text.endswith(")"):
            return text[len(holder) + 1 : -1]
    return None


def value_type(proto: "onnx.TypeProto", names: Any) -> str:
    """The text of an ONNX type, "" if there is none for it; `names` are those of element types."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            return str(names.get(proto.tensor_type.elem_type, ""))
        case "sequence_type":
            return f"sequence({value_type(proto.sequence_type.elem_type, names)})"
        case "optional_type":
            return f"optional({value_type(proto.optional_type.elem_type, names)})"
        case _:
            return ""


def onnx_type(text: str, numbers: Any, shape: tuple[int, ...] | None = None) -> "onnx.TypeProto":
    """The ONNX type that a text names; `numbers` are those of element types."""
    from onnx import helper

    inner = _inner(text)
    if inner is None:
        return helper.make_tensor_type_proto(numbers.get(text, 0), shape)
    held = onnx_type(inner, numbers)
    if text.startswith("sequence"):
        return helper.make_sequence_type_proto(held)
    return helper.make_optional_type_proto(held)


def texts(array: NDArray[Any]) -> NDArray[Any]:
    """Arrays of texts in the one form they have here; others as they are."""
    if array.dtype.kind not in "SUT":
        return array
    decoded = [v.decode() if isinstance(v, bytes) else str(v) for v in array.reshape(-1).tolist()]
    return np.array(decoded, dtype=object).reshape(array.shape)


def fits(value: Any, text: str) -> bool:
    """Whether a value is of a type: shapes are looked at elsewhere."""
    inner = _inner(text)
    if text == "":
        return True
    if inner is not None and text.startswith("optional"):
        return value is None or fits(value, inner)
    if inner is not None:
        return isinstance(value, list | tuple) and all(fits(element, inner) for element in value)
    array = np.asarray(value)
    if text == STRING:
        return array.dtype.kind in "SUT" or (
            array.dtype == object and all(isinstance(v, str | bytes) for v in array.reshape(-1))
        )
    return bool(array.dtype == to_numpy(text))


def apart(value: Any, memory: NDArray[Any]) -> Any:
    """The value, copied where it lies in `memory`, which may be written while the value is used:
    what splits, slices or reshapes gives views of what it was given."""
    if isinstance(value, list | tuple):
        return [apart(element, memory) for element in value]
    overlaps = isinstance(value, np.ndarray) and np.may_share_memory(value, memory)
    return np.array(value) if overlaps else value


def own(value: Any) -> Any:
    """A copy of a value for the caller to keep."""
    if type(value) is np.ndarray:
        return value.copy()
    if isinstance(value, list | tuple):
        return [own(element) for element in value]
    return value if value is None else np.array(value)
