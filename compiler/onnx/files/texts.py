"""Texts of ONNX files: all of them have to be UTF-8.

Protocol buffers read a text whatever its bytes are, and each place that looks at it fails in a way
of its own, or never. So every text of a file is looked at once, right after it was read. Weights
are passed over: their bytes are no texts, and there may be gigabytes of them.
"""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

from tilesmith.search_space.support.errors import ModelError

_PLAIN = frozenset({"raw_data", "float_data", "int64_data", "int32_data", "double_data"})


def check_texts(message: Message, model: str) -> None:
    """Refuse a file with a text that is not UTF-8.

    Raises:
        ModelError: it has one; the sentence names the field.
    """
    field = _damaged(message)
    if field is not None:
        raise ModelError(
            f"'{model}' has a {field} that is not UTF-8; the file may be damaged: export it anew"
        )


def _damaged(message: Message) -> str | None:
    try:
        fields = message.ListFields()
    except UnicodeDecodeError:
        return "text"
    for field, value in fields:
        if field.name in _PLAIN:
            continue
        several = not isinstance(value, Message | str | bytes | int | float)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if several else (value,):
                if (wrong := _damaged(inner)) is not None:
                    return wrong
        elif field.type == FieldDescriptor.TYPE_STRING:
            try:
                texts = list(value) if several else [value]
            except UnicodeDecodeError:
                return str(field.name)
            if any(isinstance(text, bytes) for text in texts):
                return str(field.name)
    return None
