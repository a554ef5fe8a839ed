"""How errors name what a caller may change: options on a command line, arguments in Python.

Messages are written once, with options: "leave --threads out". Whoever runs a command line says so
for as long as it runs (`on_a_command_line`); everywhere else the same message names the argument:
"leave threads= out". What is an argument of another name or form stands in a table here; commands
that a message quotes ('tilesmith quantize model.onnx -o int8.onnx') stay what they are.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_COMMAND_LINE: ContextVar[bool] = ContextVar("command_line", default=False)

FLAGS = frozenset(("resume", "require-tuned", "symmetric", "equalise"))
"""Options without a value: `resume=True`."""

OTHERWISE = {
    "op": "Workload.parse(...)",
    "set": "settings=",
    "shape": "shapes=",
    "input": "inputs=",
    "emit": "kind=",
    "model": "source=",
}
"""Options whose argument has another name."""

SHELL_ONLY = frozenset(("port", "host", "head", "yes", "job", "dry-run", "skip-bad", "status"))
"""Options of commands that have no function of their own; they are left as they are."""

_QUOTED = re.compile(r"'(?:tilesmith|ray|python|pip) [^']*'")
_EXTENT = r"\d+(?:\.\.\d+)?"
_SHAPE = re.compile(rf"--shape ([^\s=,;]+)=({_EXTENT}(?:x{_EXTENT})*)(?![\w:]|\.\w)")
_SETTING = re.compile(r"--set ([\w.]+)=([^\s,;]+)")
_VALUE = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*) = ")
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)\b")


@contextmanager
def on_a_command_line() -> Iterator[None]:
    """Within the block errors name options."""
    before = _COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _COMMAND_LINE.reset(before)


def spoken(message: str) -> str:
    """A message as its reader may act on it."""
    return message if _COMMAND_LINE.get() else as_arguments(message)


def as_arguments(message: str) -> str:
    """A message with options made Python's arguments, but for the commands it quotes."""
    if "--" not in message:
        return message
    parts: list[str] = []
    at = 0
    for quoted in _QUOTED.finditer(message):
        parts += (_renamed(message[at : quoted.start()]), quoted[0])
        at = quoted.end()
    return "".join((*parts, _renamed(message[at:])))


def _renamed(text: str) -> str:
    text = _SHAPE.sub(lambda m: f"shapes={_shape(m[1], m[2])}", text)
    text = _VALUE.sub(lambda m: f"{argument(m[1]).rstrip('=')} = ", text)
    text = _SETTING.sub(lambda m: f'settings={{"{m[1]}": "{m[2]}"}}', text)
    return _OPTION.sub(lambda m: argument(m[1]), text)


def _shape(name: str, extents: str) -> str:
    axes: list[int | tuple[int, ...]] = []
    for extent in extents.split("x"):
        ends = tuple(int(number) for number in extent.split(".."))
        axes.append(ends if len(ends) > 1 else ends[0])
    alone = axes[0] if len(axes) == 1 and isinstance(axes[0], tuple) else tuple(axes)
    return f'{{"{name}": {alone}}}'


def argument(option: str) -> str:
    """What an option (without its dashes) is in Python."""
    if option in SHELL_ONLY:
        return f"--{option}"
    if option in OTHERWISE:
        return OTHERWISE[option]
    return f"{option.replace('-', '_')}={'True' if option in FLAGS else ''}"
