"""Orders: models to be tuned for the processes that run them, in a folder that these share.

    FOLDER/tuner.lock           held by the one tuner of this machine and user
    FOLDER/KEY/order.json       what is to be tuned: `TuningOrder`
    FOLDER/KEY/model.onnx       the model, where its process has it in memory alone
    FOLDER/KEY/owners/ID        one file for each process that runs it: `processes.signature`
    FOLDER/KEY/state.json    how far it is: `OrderState`
    FOLDER/KEY/N.tsm            the model compiled with the best schedules, to exchange to

The key is a digest of all that decides how the model is compiled, weights included, so that
processes with one key may exchange to one artifact. Invariants: files appear whole; artifacts hold
code that will be run, so a folder that others may write is refused; who holds no owner's file any
more, or is dead, owns nothing.
"""

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tilesmith.codegen.host.object_cache import folder as cache_folder
from tilesmith.compiler.recipe.program import Recipe
from tilesmith.compiler.recipe.variants import VaryingRecipe
from tilesmith.jobs.requests.request import Resolved
from tilesmith.records.jobs import processes
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.support.files import unwritable, written

Shapes = dict[str, tuple[Any, ...]]

_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading a file of this folder raises that somebody else wrote into."""


def orders_folder() -> Path:
    """Where this user's orders are: beside what the compiler caches."""
    return cache_folder() / "first_use"


@dataclass(frozen=True)
class TuningOrder:
    """What is to be tuned, and for which use.

    Attributes:
        model: path of the model's file.
        content: digest of what the model holds.
        target: as `Target.to_json`.
        database: where schedules are kept: absolute path or URL.
        shapes, threads, precision, updates, chips, bits: as `Resolved`.
        ranges: where this is one choice of sizes of a model that runs for ranges of them: these.
        packs: as `Resolved`, absolute paths.
        measure: as `TuneRequest.measure`.
        tools: versions of the installation that compiled it; another one leaves it alone.
    """

    model: str
    content: str
    target: str
    database: str
    threads: int = 1
    precision: str = "fp32"
    shapes: Shapes = field(default_factory=dict)
    updates: dict[str, str] = field(default_factory=dict)
    chips: int = 1
    ranges: Shapes = field(default_factory=dict)
    packs: tuple[str, ...] | None = None
    measure: str | None = None
    bits: str = "any"
    tools: dict[str, str] = field(default_factory=lambda: Toolchain.installed().to_dict())

    @property
    def is_ours(self) -> bool:
        """Whether this installation is the one that compiled it."""
        return self.tools == Toolchain.installed().to_dict()

    @property
    def key(self) -> str:
        """The name of its folder; a model in memory has one wherever it is written to."""
        said = {**asdict(self), "model": Path(self.model).name}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:24]

    def resolved(self) -> Resolved:
        """What compiles the model as its processes do, with the database."""
        return Resolved(
            self.model, Target.from_json(self.target), self.database, self.shapes, self.threads,
            self.precision, self.updates, self.chips, self.packs, self.bits,
        )  # fmt: skip

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "TuningOrder":
        raw = json.loads(text)
        for key in ("shapes", "ranges"):
            raw[key] = {name: _extents(said) for name, said in raw[key].items()}
        packs = raw.pop("packs")
        if type(raw["threads"]) is not int:
            raise TypeError("its threads are no number")
        return cls(**raw, packs=None if packs is None else tuple(packs))


def _extents(said: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(extent) if isinstance(extent, list) else extent for extent in said)


@dataclass(frozen=True)
class OrderState:
    """How far the tuning of an order is.

    Attributes:
        version: of the artifact that is best; 0: none is better than the model at first.
        rounds: tuning jobs that were finished for it.
        idle: how many of the last ones brought no gain.
        seconds: that they took.
        ended: why nothing more is tried; "" while it is.
        failed: whether that is a failure.
        ratio: time of the best over that of the model at first, as they were compared.
    """

    version: int = 0
    rounds: int = 0
    idle: int = 0
    seconds: float = 0.0
    ended: str = ""
    failed: bool = False
    ratio: float = 1.0

    @classmethod
    def from_json(cls, text: str) -> "OrderState":
        state = cls(**json.loads(text))
        if not all(type(getattr(state, f.name)) in (f.type, int) for f in fields(cls)):
            raise TypeError("a number stands where a text belongs, or a text where a number does")
        return state


def digest_of(recipe: Recipe | VaryingRecipe) -> str:
    """What a compiled model runs: equal digests are equal programs."""
    digest = hashlib.sha256()
    for code in recipe.codes:
        digest.update(hashlib.sha256(code.code).digest())
    return digest.hexdigest()[:16]


class OrderFolder:
    """The folder of one order; errors of its writing are `JobError` and `InputError`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def order(self) -> TuningOrder | None:
        """What is to be tuned; None while nobody has said, or where it cannot be read."""
        try:
            return TuningOrder.from_json((self.path / "order.json").read_text())
        except _UNREADABLE:
            return None

    @property
    def state(self) -> OrderState:
        """How far it is."""
        try:
            return OrderState.from_json((self.path / "state.json").read_text())
        except _UNREADABLE:
            return OrderState()

    @state.setter
    def state(self, state: OrderState) -> None:
        self.write("state.json", json.dumps(asdict(state)))

    def write(self, name: str, text: str) -> None:
        with written(self.path / name) as stream:
            stream.write(text.encode())

    def artifact(self, version: int) -> Path:
        return self.path / f"{version}.tsm"

    # -- owners ---------------------------------------------------------------------------------
    def own(self, runs: str) -> Path:
        """Say that this process runs the model; the file to delete when it does no more.

        Args:
            runs: digest of the program that it runs.
        """
        path = self.path / "owners" / str(os.getpid())
        made_private(path.parent)
        self.write(f"owners/{path.name}", f"{processes.signature()} {runs}")
        return path

    def owners(self) -> dict[Path, str]:
        """The files of processes that live, and what each runs; those of others are deleted."""
        living = {}
        for path in (self.path / "owners").glob("[0-9]*"):
            with suppress(OSError):
                signed, _, runs = path.read_text().partition(" ")
                if _lives(signed, int(path.name)):
                    living[path] = runs
                else:
                    path.unlink()
        return living

    def clear(self) -> None:
        """Delete what only processes that run the model need, when none does."""
        state = self.state
        (self.path / "order.json").unlink(missing_ok=True)
        if not state.ended or state.failed:
            (self.path / "state.json").unlink(missing_ok=True)
        elif state.version:  # the database knows what the artifact was made of
            self.state = replace(state, version=0)
        for path in (*self.path.glob("*.tsm"), *self.path.glob("model.*")):
            path.unlink(missing_ok=True)


def _lives(signed: str, number: int) -> bool:
    alive = processes.lives(signed)
    if alive is not None:
        return alive
    try:
        os.kill(number, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def every(folder: Path) -> list[OrderFolder]:
    """All orders in a folder, in a fixed order."""
    return [OrderFolder(path.parent) for path in sorted(folder.glob("*/order.json"))]


def made_private(path: Path) -> None:
    """Make a folder that only this user writes.

    Raises:
        JobError, InputError: it cannot be made, or others may write it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: no home
        failure = error if isinstance(error, OSError) else OSError(str(error))
        raise unwritable(path, failure) from error
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JobError(f"'{path}' can be written by others, and holds code that is run")


@contextmanager
def tuner_lock(folder: Path) -> Iterator[bool]:
    """Be the one tuner while the block runs; gives False where another process is."""
    with (folder / "tuner.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def has_tuner(folder: Path) -> bool:
    """Whether a tuner is at work."""
    with tuner_lock(folder) as free:
        return not free
