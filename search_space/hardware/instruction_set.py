"""`InstructionSet`: the vectors of a family of CPUs as data, and how LLVM is told to use them.

One TOML file each in `instruction_sets/`, found by itself, or one named by its path:

    doc = "256-bit vectors: Intel from Haswell on, AMD from Zen on"
    source = "where the numbers were read"
    architectures = ["x86_64"]              # first words of LLVM triples; empty: any
    triple = "x86_64-unknown-linux-gnu"     # what to compile for where this machine is another
    elf_machine = 62                        # e_machine of its objects
    features = "+avx2,+fma"                 # LLVM's features that its code needs
    conversions = ["float16"]               # to and from float32 by instructions; default: none
    attributes = ""                         # LLVM function attributes of its code
    [vector]
    bytes = 32
    registers = 16
    vscale_bytes = 0                        # bytes that LLVM's `vscale` counts; 0: not scalable
    longest = 0                             # bytes of the longest registers that its code runs on
    fused = true                            # false: LLVM is to choose how to multiply and add
    [host]
    order = 3                               # among the sets a host has, the least is chosen
    features = ["avx2", "fma"]              # what LLVM must say of the host
    [assembly]                              # regular expressions, which the tests know it by
    vector = '%ymm'
    multiply_add = 'vfmadd'
    never = '%zmm'
    [[intrinsics]]                          # operations that one instruction does: `OPERATIONS`
    [[dot_products]]                        # accumulator[i] += sum_j left[i, j] * right[i, j]
    [tiles]                                 # registers that hold matrices
    count = 8
    rows = 16
    bytes = 64                              # of a row
    features = "+amx-tile"
    [[tile_products]]                       # tile += left right: dot products of rows and columns

Code is vectors of fixed width. For scalable registers, `vscale_range` says how long they are:
exactly `bytes`, or from `bytes` to `longest`. Invariant: whoever asks what an instruction set can
do asks its data, never its name.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilesmith.search_space.expressions.dtypes import NAMES, size_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.files import ending
from tilesmith.search_space.support.registry import FileRegistry
from tilesmith.search_space.support.suggestions import instead

OPERATIONS = {
    "scale_by_power": ("x", "n"), "exponent": ("x",), "mantissa": ("x",), "keep_nan": ("x", "y"),
}  # fmt: skip
"""What an intrinsic may do and its operands.

scale_by_power: x 2^n, rounded as is in force, n whole.
exponent: the greatest whole n with 2^n <= |x|, of denormals too; -inf of 0, inf of infinities.
mantissa: x / 2^(exponent + 1), in [1/2, 1); 1 of zeros and of infinity, NaN of what is negative.
keep_nan: NaN where y is, else x.
NaN gives NaN in all of them.
"""


@dataclass(frozen=True)
class TargetIntrinsic:
    """One operation on one whole vector in one instruction.

    Attributes:
        operation: a key of `OPERATIONS`.
        dtype, lanes: the vector it works on.
        name: of LLVM's intrinsic.
        arguments: each an operand of the operation, or a constant: "i16 65535".
    """

    operation: str
    dtype: str
    lanes: int
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class DotProduct:
    """accumulator[i] += sum over j < products of left[i * products + j] * right[i * products + j].

    Attributes:
        instruction: its name in assembly.
        intrinsic: LLVM's: (accumulator, left, right) -> accumulator, on whole vectors.
        inputs: dtypes of left and right.
        accumulator: dtype of the sums.
        products: added up in each lane.
        features: LLVM features it needs beside those of the set.
        accumulates: false where the intrinsic is (left, right) -> sums of products, to be added.
    """

    instruction: str
    intrinsic: str
    inputs: tuple[str, ...]
    accumulator: str
    products: int
    features: str = ""
    accumulates: bool = True


@dataclass(frozen=True)
class Tiles:
    """Registers that hold a matrix each.

    Attributes:
        count: of them.
        rows, row_bytes: the largest matrix.
        features: LLVM features that they need beside those of the set.
    """

    count: int
    rows: int
    row_bytes: int
    features: str


@dataclass(frozen=True)
class Assembly:
    """Regular expressions of its assembly: a whole vector register, the instruction of a
    multiply-add (or of its product), and what its code never has; "" where nobody says."""

    vector: str = ""
    multiply_add: str = ""
    never: str = ""


@dataclass(frozen=True)
class InstructionSet:
    """See the module's docstring."""

    name: str
    doc: str
    source: str
    architectures: tuple[str, ...]
    triple: str
    elf_machine: int
    features: str
    conversions: tuple[str, ...]
    attributes: str
    vector_bytes: int
    vector_registers: int
    vscale_bytes: int
    longest: int
    fused: bool
    host_order: int
    host_features: tuple[str, ...]
    assembly: Assembly
    intrinsics: tuple[TargetIntrinsic, ...]
    dot_products: tuple[DotProduct, ...]
    tiles: Tiles | None
    tile_products: tuple[DotProduct, ...]
    """accumulator[i, j] += sum over k of left[i, k] * right[k, j], where `products` neighbours of k
    stand together in rows of right, [k/products, j, k%products]. LLVM's intrinsic takes the numbers
    of three registers."""

    def fits(self, triple: str) -> bool:
        """Whether it belongs to the architecture of an LLVM triple."""
        return not self.architectures or triple.split("-")[0] in self.architectures

    @property
    def function_attributes(self) -> str:
        """LLVM attributes of every function of its code."""
        if not self.vscale_bytes:
            return self.attributes
        least, most = (size // self.vscale_bytes for size in (self.vector_bytes, self.longest))
        return f"{self.attributes} vscale_range({least},{most})".strip()


instruction_set_files = FileRegistry(
    "isa.name", "tilesmith.search_space.instruction_sets", TargetError
)
"""TOML files by the names of what they describe: those that ship, and those of extensions."""


@cache
def instruction_set(name: str) -> InstructionSet:
    """A known instruction set by name, or one from a path that ends in `.toml`.

    Raises:
        TargetError: unknown name, unreadable or invalid file.
    """
    if name.endswith(".toml"):
        try:
            return parse_instruction_set(name, ending(Path(name)).read_text())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise TargetError(f"instruction set file '{name}' cannot be read: {reason}") from error
    return parse_instruction_set(name, instruction_set_files[name].read_text())


def instruction_set_of(target: Target) -> InstructionSet:
    """Return the instruction set of a CPU target; `TargetError` if none has its name."""
    return instruction_set(target.text("isa.name"))


def lanes(target: Target, dtype: str) -> int:
    """Elements of a dtype in one vector register of a CPU target."""
    return target.integer("vector.bytes") // size_of(dtype)


def vector_width(target: Target) -> int:
    """Return how many elements a vector loop of a CPU kernel handles at once, for any dtype.

    The lanes of 4 bytes, in which kernels compute, count indices and keep masks: values of 8 bytes
    fill two registers, of 1 byte a quarter of one.
    """
    return lanes(target, "float32")


def has_features(target: Target, features: str) -> bool:
    """Whether a CPU target has all of some LLVM features, written "+one,+two"."""
    return set(filter(None, features.split(","))) <= set(target.text("isa.features").split(","))


def dot_product(target: Target, left: str, right: str) -> DotProduct | None:
    """The instruction of a CPU target that multiplies elements of two dtypes, in either order, and
    adds neighbours; None where it has none."""
    for instruction in instruction_set_of(target).dot_products:
        if sorted(instruction.inputs) == sorted((left, right)) and has_features(
            target, instruction.features
        ):
            return instruction
    return None


def parse_instruction_set(name: str, text: str) -> InstructionSet:
    """Read an instruction set from TOML text; `TargetError` says what is wrong with it."""
    try:
        table = _Table(name, "", tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise TargetError(f"instruction set '{name}' is not valid TOML: {error}") from error
    vector, host, assembly = (table.table(part) for part in ("vector", "host", "assembly"))
    architectures = table.texts("architectures")
    size = vector.integer("bytes", minimum=8, maximum=8192)
    instruction_set = InstructionSet(
        name,
        table.text("doc"),
        table.text("source"),
        architectures,
        table.text("triple", None if architectures else ""),
        table.integer("elf_machine", None if architectures else 0),
        table.text("features"),
        table.texts("conversions", ()),
        table.text("attributes", ""),
        size,
        vector.integer("registers", minimum=4, maximum=128),
        vector.integer("vscale_bytes", 0),
        vector.integer("longest", 0),
        vector.truth("fused", True),
        host.integer("order"),
        host.texts("features"),
        Assembly(*(assembly.text(key, "") for key in ("vector", "multiply_add", "never"))),
        tuple(_intrinsic(entry) for entry in table.tables("intrinsics")),
        tuple(_dot_product(entry) for entry in table.tables("dot_products")),
        _tiles(table.table("tiles")),
        tuple(_dot_product(entry) for entry in table.tables("tile_products")),
    )
    for part in (table, vector, host, assembly):
        part.finish()
    unit = instruction_set.vscale_bytes or 1
    if (
        size & (size - 1)
        or size % unit
        or (instruction_set.vscale_bytes and instruction_set.longest < size)
    ):
        raise TargetError(
            f"instruction set '{name}': vector.bytes = {size} must be a power of two, a multiple "
            f"of vector.vscale_bytes = {instruction_set.vscale_bytes} and at most vector.longest = "
            f"{instruction_set.longest} where registers are scalable"
        )
    return instruction_set


def _intrinsic(table: "_Table") -> TargetIntrinsic:
    operation = table.choice("operation", tuple(OPERATIONS))
    intrinsic = TargetIntrinsic(
        operation,
        table.choice("dtype", NAMES),
        table.integer("lanes", minimum=1),
        table.text("name"),
        table.texts("arguments"),
    )
    operands = OPERATIONS[operation]
    for argument in intrinsic.arguments:
        if argument not in operands and not re.fullmatch(r"(\d+ x )?i\d+ \d+", argument):
            raise table.error("arguments", argument, f"{', '.join(operands)} or 'i32 4'")
    table.finish()
    return intrinsic


def _dot_product(table: "_Table") -> DotProduct:
    product = DotProduct(
        table.text("instruction"),
        table.text("intrinsic"),
        table.texts("inputs"),
        table.choice("accumulator", NAMES),
        table.integer("products", minimum=1),
        table.text("features", ""),
        table.truth("accumulates", True),
    )
    if len(product.inputs) != 2 or not set(product.inputs) <= set(NAMES):
        raise table.error("inputs", list(product.inputs), f"two of {', '.join(NAMES)}")
    table.finish()
    return product


def _tiles(table: "_Table") -> Tiles | None:
    if not table.entries:
        return None
    tiles = Tiles(
        table.integer("count", minimum=3),
        table.integer("rows", minimum=1),
        table.integer("bytes", minimum=4),
        table.text("features", ""),
    )
    table.finish()
    return tiles


class _Table:
    """A TOML table whose keys are taken one by one; what is left at the end is unknown."""

    def __init__(self, name: str, prefix: str, entries: Mapping[str, Any]) -> None:
        self._name = name
        self._prefix = prefix
        self.entries = dict(entries)
        self._known: list[str] = []

    def error(self, key: str, given: object, expected: str) -> TargetError:
        return TargetError(
            f"instruction set '{self._name}': {self._prefix}{key} = {given!r}; "
            f"{expected} is expected"
        )

    def _take(self, key: str, default: Any, kind: type, expected: str) -> Any:
        self._known.append(key)
        entry = self.entries.pop(key, default)
        if entry is None:
            raise TargetError(
                f"instruction set '{self._name}' lacks {self._prefix}{key}, {expected}"
            )
        if not isinstance(entry, kind) or (isinstance(entry, bool) and kind is not bool):
            raise self.error(key, entry, expected)
        return entry

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._take(key, default, str, "a text"))

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        text = self.text(key)
        if text not in allowed:
            raise self.error(key, text, f"one of {', '.join(allowed)}")
        return text

    def integer(
        self, key: str, default: int | None = None, minimum: int = 0, maximum: int = 1 << 30
    ) -> int:
        expected = f"a whole number from {minimum} to {maximum}"
        number = int(self._take(key, default, int, expected))
        if not minimum <= number <= maximum:
            raise self.error(key, number, expected)
        return number

    def truth(self, key: str, default: bool) -> bool:
        return bool(self._take(key, default, bool, "true or false"))

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        given = None if default is None else list(default)
        items = self._take(key, given, list, "a list of texts")
        if not all(isinstance(item, str) for item in items):
            raise self.error(key, items, "a list of texts")
        return tuple(items)

    def table(self, key: str) -> "_Table":
        entries = self._take(key, {}, dict, "a table")
        return _Table(self._name, f"{self._prefix}{key}.", entries)

    def tables(self, key: str) -> "list[_Table]":
        entries = self._take(key, [], list, "a list of tables")
        if not all(isinstance(item, dict) for item in entries):
            raise self.error(key, entries, "a list of tables")
        return [_Table(self._name, f"{key}[{i}].", item) for i, item in enumerate(entries)]

    def finish(self) -> None:
        """Raise `TargetError` for a key that was not read."""
        if self.entries:
            key = min(self.entries)
            raise TargetError(
                f"instruction set '{self._name}' has the unknown key '{self._prefix}{key}'"
                f"{instead(key, self._known, 'keys there are')}"
            )
