"""Large weights of ONNX files, left in the file: mapped, not parsed.

A parsed model holds its weights a first time, arrays made of them a second. Here the messages
around them are walked in their wire format (https://protobuf.dev/programming-guides/encoding/) and
what is left to parse has no weights of some size in it: arrays lie over the file's pages, which the
system takes back when it likes, and which are let go as weights are packed (`release`).

Invariants: whatever is not as expected stays with the parser, which says what is wrong; the bytes
left out are those of arrays given.
"""

import contextlib
import math
import mmap
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tilesmith.search_space.support.files import ending

Arrays = dict[str, NDArray[Any]]

_LEAST = 1 << 16
"""Bytes of a weight that is left in the file."""

_GRAPH, _INITIALIZER, _RAW = 7, 5, 9
"""Numbers of the fields ModelProto.graph, GraphProto.initializer, TensorProto.raw_data."""

_EXTERNAL = b"\x70\x01"
"""TensorProto.data_location = EXTERNAL: the values are elsewhere."""


class FileMap(mmap.mmap):
    """A file's pages, only read: nothing is lost if they are let go."""


_maps: weakref.WeakSet[FileMap] = weakref.WeakSet()


def release() -> None:
    """Let the pages of all maps go; who reads them again gets them from the file."""
    for pages in list(_maps):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            pages.madvise(mmap.MADV_DONTNEED)


def is_mapped(array: NDArray[Any]) -> bool:
    """Whether an array lies over the pages of a file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base.obj if isinstance(base, memoryview) else base, FileMap)


def read_mapped(path: Path) -> tuple[bytes, Arrays]:
    """What is to be parsed of a model's file, and the weights that were left in it, by name.

    Raises:
        OSError: the file cannot be read.
    """
    with ending(path).open("rb") as file:
        if sys.byteorder == "little":
            with contextlib.suppress(OSError, ValueError):  # no file of the usual kind, or empty
                pages = FileMap(file.fileno(), 0, access=mmap.ACCESS_READ)
                _maps.add(pages)
                with contextlib.suppress(_UnexpectedError):
                    return _without_weights(pages)
        return file.read(), {}


class _UnexpectedError(Exception):
    """Bytes that are no message."""


def _without_weights(pages: FileMap) -> tuple[bytes, Arrays]:
    weights: Arrays = {}
    whole: list[bytes] = []
    for number, start, body, end in _fields(pages, 0, len(pages)):
        if number != _GRAPH:
            whole.append(pages[start:end])
            continue
        parts: list[bytes] = []
        for inner, first, content, last in _fields(pages, body, end):
            if inner == _INITIALIZER and last - content >= _LEAST:
                parts.append(_message(_INITIALIZER, _tensor(pages, content, last, weights)))
            else:
                parts.append(pages[first:last])
        whole.append(_message(_GRAPH, b"".join(parts)))
    return b"".join(whole), weights


def _tensor(pages: FileMap, start: int, stop: int, weights: Arrays) -> bytes:
    """A tensor's message, without its values if they are now in `weights`."""
    rest: list[bytes] = []
    raw = None
    for number, first, body, end in _fields(pages, start, stop):
        if number == _RAW:
            raw = body, end
        elif end - first < _LEAST:
            rest.append(pages[first:end])
        else:  # values in a form that is not raw
            return pages[start:stop]
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(b"".join(rest))
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        shape = tuple(tensor.dims)
        size = math.prod(shape) * dtype.itemsize
    except Exception:  # no such type, or no message: the parser says so
        return pages[start:stop]
    usual = dtype.kind in "fiub" and dtype.itemsize * 8 == _bits(dtype) and not tensor.external_data
    if raw is None or not tensor.name or tensor.name in weights or not usual:
        return pages[start:stop]
    if any(extent < 0 for extent in shape) or size != raw[1] - raw[0]:
        return pages[start:stop]
    weights[tensor.name] = np.frombuffer(pages, dtype, math.prod(shape), raw[0]).reshape(shape)
    return b"".join(rest) + _EXTERNAL


def _bits(dtype: np.dtype[Any]) -> int:
    """Of an element of a type that numpy itself has: those of fewer are packed in files."""
    return 8 if dtype.kind == "b" else np.dtype(dtype.str).itemsize * 8


def _fields(pages: FileMap, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Of each field of a message: its number, and where it, its content and what follows begin."""
    while start < stop:
        tag, at = _varint(pages, start, stop)
        match tag & 7:
            case 0:
                _, end = _varint(pages, at, stop)
                body = at
            case 1:
                body, end = at, at + 8
            case 2:
                size, body = _varint(pages, at, stop)
                end = body + size
            case 5:
                body, end = at, at + 4
            case _:
                raise _UnexpectedError
        if end > stop:
            raise _UnexpectedError
        yield tag >> 3, start, body, end
        start = end


def _varint(pages: FileMap, at: int, stop: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while at < stop and shift < 64:
        byte = pages[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
    raise _UnexpectedError


def _message(number: int, content: bytes) -> bytes:
    """A field that holds a message."""
    header, size = bytearray([number << 3 | 2]), len(content)
    while size > 127:
        header.append(size & 127 | 128)
        size >>= 7
    return bytes([*header, size]) + content
