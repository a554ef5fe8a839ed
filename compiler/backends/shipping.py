"""Compiled models as libraries: what is asked for, who writes it, and what came of it.

A family's models become libraries where an `LibraryEmitter` is registered under the family's name.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError, TargetError
from tilesmith.search_space.support.extensions import absent
from tilesmith.search_space.support.files import check_output
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.search_space.support.registry import Registry

Kind = Literal["library", "object", "archive"]
Weights = Literal["inside", "file"]


class Shippable(Protocol):
    """What becomes a library: a recipe, of one size or of many."""

    @property
    def target(self) -> Target: ...


_OTHERS = (".h", ".weights", ".cmake", ".pc")


@dataclass(frozen=True)
class LibraryRequest:
    """A library to be written.

    Attributes:
        output: where to; beside it lie the header (`model.h` of libmodel.a) and the packages
            for CMake and pkg-config.
        kind: a shared library, one relocatable object, or an archive of it (a static library).
        weights: in the library, or in a file beside it (`.weights`), which processes share.
        prefix: what the names of its functions begin with; "": after the model.

    Raises (on construction):
        InputError: an unknown kind, or an output that is a header or a file of weights by its name.
    """

    output: Path
    kind: Kind = "library"
    weights: Weights = "inside"
    prefix: str = ""

    def __post_init__(self) -> None:
        for name, allowed in (("kind", Kind), ("weights", Weights)):
            if getattr(self, name) not in get_args(allowed):
                raise InputError(
                    f"{name} = '{getattr(self, name)}' is unknown; one of "
                    f"{', '.join(get_args(allowed))} is expected"
                )
        if self.output.suffix in _OTHERS:
            raise InputError(
                f"'{self.output}' is what a library's other files are called; name the library "
                "itself, such as model.so"
            )

    @property
    def header(self) -> Path:
        return header_file(self.output)

    @property
    def weights_file(self) -> Path | None:
        own = self.header.with_suffix(".weights")
        return own if self.weights == "file" else None

    def check(self, *sources: str | Path) -> None:
        """Refuse files that cannot be written; errors as `check_output`."""
        if self.output.exists() and not (self.output.is_file() or self.output.is_dir()):
            raise InputError(
                f"'{self.output}' is no file that others could lie beside; name one, such as "
                "model.so"
            )
        others = (self.header, *package_files(self.output), self.weights_file)
        for path in filter(None, (self.output, *others)):
            check_output(path, *sources)


@dataclass(frozen=True)
class Library(
    JsonObject,
    keys="path header weights kind prefix weight_bytes workspace_bytes threads cmake bytes:nbytes "
    "sizes:_ranges?",
):
    """A library that was written.

    Attributes:
        path, header, weights: its files; no weights where they are inside.
        kind: as asked for.
        prefix: what the names of its functions begin with.
        nbytes: of the library's file.
        weight_bytes: of weights, wherever they are.
        workspace_bytes: of memory that each caller needs.
        threads: how many run it at most.
        sizes: those that vary: name, least, greatest.
        cmake: the package for `find_package`; a file for pkg-config lies beside it.
    """

    path: str
    header: str
    weights: str | None
    kind: str
    prefix: str
    nbytes: int
    weight_bytes: int
    workspace_bytes: int
    threads: int
    sizes: tuple[tuple[str, int, int], ...] = ()
    cmake: str = ""

    @property
    def _ranges(self) -> dict[str, tuple[int, int]]:
        return {name: (least, most) for name, least, most in self.sizes}


class LibraryEmitter(ABC):
    """Writes compiled models of one family of targets as libraries for programs without Python."""

    @abstractmethod
    def emit(self, recipe: Shippable, request: LibraryRequest) -> Library:
        """Write a compiled model as a library.

        Raises:
            ModelError: parts of the model run on the host.
            DependencyError: nothing here links shared libraries for the target.
            InputError, JobError: a file cannot be written.
        """


emitters: Registry[type[LibraryEmitter]] = Registry(
    "library emitter", "", TargetError, room="emitter"
)
"""By family of targets."""


def emitter_of(target: Target) -> LibraryEmitter:
    """What writes libraries for a target.

    Raises:
        TargetError: models of its family do not become libraries.
        DependencyError: nothing that is installed writes libraries.
    """
    emitter = emitters.find(target.family)
    if emitter is not None:
        return emitter()
    if not list(emitters):
        raise absent("c_library", "writing a model as a library")
    raise TargetError(
        f"target '{target.name}' has no libraries: models of family '{target.family}' are "
        "simulated here; compile for a CPU, or to a .tsm"
    )


def package_name(output: Path) -> str:
    """What build systems call a library by its file: `libmodel.a` is model, as `model.so` is."""
    stem = output.stem if output.name.startswith(".") else output.name.partition(".")[0]
    name = stem.removeprefix("lib") or stem
    return "".join(c if (c.isascii() and c.isalnum()) or c in "_-" else "_" for c in name)


def header_file(output: Path) -> Path:
    """The C header beside a library; package, header and weights have one name."""
    return output.with_name(f"{package_name(output)}.h")


def package_files(output: Path) -> tuple[Path, Path]:
    """What build systems read about a library, beside it: CMake, and pkg-config."""
    name = package_name(output)
    return output.with_name(f"{name}Config.cmake"), output.with_name(f"{name}.pc")
