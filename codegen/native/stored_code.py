"""A kernel's code as bytes: for the cache on disk, and from one process to another.

One line of JSON (buffers, workspaces, what is never read), then the objects.
"""

from __future__ import annotations

import json

from tilesmith.codegen.native.kernel import KernelCode, concrete_shape
from tilesmith.search_space.expressions.expression import const
from tilesmith.search_space.ir.program import Buffer


def encoded(code: KernelCode, unread: frozenset[str] = frozenset()) -> bytes:
    """Code of fixed sizes, and the operands that it never reads."""
    head = {
        "buffers": [
            [b.name, list(concrete_shape(b)), b.dtype, b.scope, b.role] for b in code.parameters
        ],
        "shared": code.shared_bytes,
        "local": code.local_bytes,
        "unread": sorted(unread),
        "bytes": len(code.object),
        "prologue": None if code.prologue is None else len(code.prologue),
    }
    return json.dumps(head).encode() + b"\n" + code.object + (code.prologue or b"")


def decoded(content: bytes) -> tuple[KernelCode, frozenset[str]]:
    """What `encoded` made; ValueError, KeyError or TypeError if it is something else."""
    line, _, binary = content.partition(b"\n")
    head = json.loads(line)
    body, prologue = binary[: head["bytes"]], binary[head["bytes"] :]
    if len(binary) != head["bytes"] + (head["prologue"] or 0):
        raise ValueError("a truncated cache entry")
    buffers = tuple(
        Buffer(name, tuple(const(e) for e in shape), dtype, scope, role)
        for name, shape, dtype, scope, role in head["buffers"]
    )
    first = None if head["prologue"] is None else prologue
    code = KernelCode(buffers, body, first, head["shared"], head["local"])
    return code, frozenset(head["unread"])
