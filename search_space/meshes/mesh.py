"""`Mesh`: many cores as data: a target made of targets, with the links between them.

A mesh is the target of one core, and levels of links around it, from the inside out: cores in a
chip, chips in a torus, instances in a network. One TOML file in `meshes/` is one mesh:

    core = "trn1"                      # a target by name, or a .toml file beside this one
    levels = ["chip", "torus"]         # from the inside out
    [memory]
    gib = 32                           # of a chip
    gbps = 820
    [chip]
    members = 2                        # cores
    topology = "switch"
    ...
    [torus]
    members = "4x4"                    # chips: the extents of a torus
    topology = "torus"
    gbps = {value = 384, source = "...", trust = "V"}   # of all links of one chip, as published
    both_ways = true                   # the figure counts what goes out and what comes in
    hop_us = {value = 1.5, calibratable = true}
    ports = "chip"                     # whose the links are; without it, of the next cell inside

What the core's target says of links is not said twice: `links = 7` with `link = "c2c.gbps"`, a fact
of the core, stand for `gbps`; and `hop = "delay.link"`, cycles of the core's clock, for
`hop_us`, `hops` times (1 by default).
Facts are those of targets (`search_space/hardware/target.py`): value, source, trust, range.
Invariants: frozen; cores are numbered from the inside out (core 1 is the neighbour of core 0 on
its chip); the
level called "chip" is the outermost one inside a chip, and without one a chip is a core.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from tilesmith.search_space.hardware.target import FactValue, Target, load_target, parse_facts
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.files import ending
from tilesmith.search_space.support.registry import FileRegistry
from tilesmith.search_space.support.suggestions import did_you_mean

Topology = Literal["ring", "torus", "switch", "all_to_all"]
"""`switch`: every member has one port in and one out, nothing blocks between; `all_to_all`: a
link of its own between every two members; a torus and a ring have links to both neighbours."""

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

COLLECTIVE_KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)

CHIP = "chip"
_MOST_MEMBERS = 1 << 16
"""Of a level, whatever its dimensions: what numbers of members are limited to in shipped files."""
_CORE = "core"
_FAMILY = "mesh"


@dataclass(frozen=True)
class Level:
    """Links between the cells of the next level inside.

    Args:
        extents: members along each dimension of a torus, slowest first; else one number.
        gbps: GB/s out of one port owner over all its links together; as much comes in.
        hop_us: microseconds one step takes, whatever it moves.
        inside: cores in one member.
        owner: cores that share one owner's links: all of a member, or fewer.
        shared: whether its members share the memory of one chip.
    """

    name: str
    topology: Topology
    extents: tuple[int, ...]
    gbps: float
    hop_us: float
    inside: int
    owner: int
    shared: bool = False

    @property
    def members(self) -> int:
        return math.prod(self.extents)

    @property
    def cores(self) -> int:
        """Cores in one cell of this level: all its members'."""
        return self.inside * self.members

    def member_of(self, core: int) -> int:
        """Which member of its cell a core is in."""
        return core // self.inside % self.members


@dataclass(frozen=True)
class Mesh:
    """A target made of targets. Load one with `load_mesh`, change numbers with `with_settings`.

    Args:
        target: one core.
        data: what is known of the rest, as facts by dotted name (`torus.gbps`).
        order: names of the levels from the inside out.
    """

    target: Target
    data: Target
    order: tuple[str, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.target, self.data, self.order))

    def __hash__(self) -> int:
        """Of all facts, made once: costs are kept by mesh."""
        return self._hash

    @property
    def name(self) -> str:
        return self.data.name

    @property
    def doc(self) -> str:
        return self.data.doc

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels, from the inside out.

        Raises:
            TargetError: a fact is missing or no mesh can be like that.
        """
        levels: list[Level] = []
        sizes = {_CORE: 1}
        for name in self.order:
            level = self._level(name, sizes)
            sizes[name] = level.cores
            levels.append(level)
        return tuple(levels)

    def _level(self, name: str, sizes: Mapping[str, int]) -> Level:
        inside, data = list(sizes)[-1], self.data
        owner = data.text(f"{name}.ports") if f"{name}.ports" in data else inside
        if owner not in sizes:
            raise TargetError(
                f"mesh '{self.name}': {name}.ports = {owner!r} is no level inside '{name}'; "
                f"one of {', '.join(sizes)} is expected"
            )
        topology = data.text(f"{name}.topology")
        known = next((one for one in TOPOLOGIES if one == topology), None)
        if known is None:
            raise TargetError(
                f"mesh '{self.name}': {name}.topology = {topology!r} is unknown; "
                f"one of {', '.join(TOPOLOGIES)} is expected"
            )
        both = f"{name}.both_ways" in data and data.fact(f"{name}.both_ways").value is True
        gbps, hop = self._gbps(name) / (2 if both else 1), self._hop_us(name)
        if not gbps > 0:
            raise TargetError(
                f"mesh '{self.name}': {name}.gbps = {self._gbps(name):g} moves nothing; "
                "a number above 0 is expected"
            )
        extents = self._extents(name, known)
        shared = name in self.order[: self.order.index(CHIP) + 1] if CHIP in self.order else False
        return Level(name, known, extents, gbps, hop, sizes[inside], sizes[owner], shared)

    def _gbps(self, name: str) -> float:
        """Of all links of one port owner, as published, or by the core's own links."""
        if f"{name}.link" not in self.data:
            return self.data.number(f"{name}.gbps")
        return self.data.number(f"{name}.links") * self.target.number(
            self.data.text(f"{name}.link")
        )

    def _hop_us(self, name: str) -> float:
        if f"{name}.hop" not in self.data:
            return self.data.number(f"{name}.hop_us")
        hops = self.data.number(f"{name}.hops") if f"{name}.hops" in self.data else 1.0
        cycles = self.target.number(self.data.text(f"{name}.hop"))
        return hops * cycles / (self.target.number("clock.ghz") * 1e3)

    def _extents(self, name: str, topology: Topology) -> tuple[int, ...]:
        text = self.data.text(f"{name}.members")
        parts = text.split("x")
        if not all(part.isdecimal() and int(part) >= 1 for part in parts):
            raise TargetError(
                f"mesh '{self.name}': {name}.members = {text!r} is no number of members; "
                "a number from 1 is expected, or the extents of a torus as in '4x4'"
            )
        if len(parts) > 1 and topology != "torus":
            raise TargetError(
                f"mesh '{self.name}': {name}.members = {text!r} has {len(parts)} extents, "
                f"and a {topology} has one; write their product, or make it a torus"
            )
        extents = tuple(map(int, parts))
        if math.prod(extents) > _MOST_MEMBERS:
            raise TargetError(
                f"mesh '{self.name}': {name}.members = {text!r} are more members than the "
                f"{_MOST_MEMBERS:,} that a level may have"
            )
        return extents

    @property
    def cores(self) -> int:
        """All cores."""
        return self.levels[-1].cores

    @property
    def cores_per_chip(self) -> int:
        return next((level.cores for level in self.levels if level.name == CHIP), 1)

    @property
    def chips(self) -> int:
        return self.cores // self.cores_per_chip

    @property
    def chip_gib(self) -> float:
        """GiB of memory of a chip, all its cores'."""
        return self.data.number("memory.gib")

    @property
    def chip_gbps(self) -> float:
        """GB/s of a chip's memory, reads and writes together, all its cores'."""
        return self.data.number("memory.gbps")

    def number(self, name: str) -> float:
        """A fact of the mesh, or with `core.` before it one of its core's target."""
        head, _, rest = name.partition(".")
        return self.target.number(rest) if head == _CORE else self.data.number(name)

    def with_settings(self, settings: Mapping[str, str | FactValue]) -> "Mesh":
        """Change facts (what `--set KEY=VALUE` does): the mesh's, or with `core.` its core's.

        Raises:
            TargetError: unknown name, a value of another type, or one out of range.
        """
        own, core = {}, {}
        for name, value in settings.items():
            head, _, rest = name.partition(".")
            if head == _CORE and rest:
                core[rest] = value
            else:
                own[name] = value
        target = self.target.with_settings(core) if core else self.target
        changed = replace(self, target=target, data=self.data.with_settings(own))
        return changed.checked()

    def checked(self) -> "Mesh":
        """Return self; raise `TargetError` if a number that every mesh needs is missing."""
        for name in ("memory.gib", "memory.gbps", *COLLECTIVE_FACTS):
            self.data.number(name)
        if not self.order:
            raise TargetError(f"mesh '{self.name}' has no levels; write levels = [\"chip\"]")
        if not self.levels:
            raise TargetError(f"mesh '{self.name}' has no cores")
        return self

    def groups(self, size: int, stride: int = 1) -> tuple[tuple[int, ...], ...]:
        """Divide all cores into groups of `size`, whose members are `stride` apart.

        Raises:
            TargetError: the cores cannot be divided so.
        """
        if size < 1 or stride < 1 or self.cores % (size * stride):
            apart = "" if stride == 1 else f", {stride} apart,"
            free = self.cores // stride if stride >= 1 and self.cores % stride == 0 else 1
            allowed = ", ".join(str(n) for n in range(1, free + 1) if free % n == 0)
            raise TargetError(
                f"mesh '{self.name}' has {self.cores} cores, which groups of {size}{apart} do not "
                f"divide; allowed: {allowed}"
            )
        block = size * stride
        return tuple(
            tuple(range(start + offset, start + offset + block, stride))
            for start in range(0, self.cores, block)
            for offset in range(stride)
        )

    def check_group(self, group: Iterable[int]) -> tuple[int, ...]:
        """The group as it was given, if it names cores of this mesh, each once.

        Raises:
            TargetError: it is empty, names a core twice or one that the mesh lacks.
        """
        cores, count = tuple(group), self.cores
        strange = [core for core in cores if not 0 <= core < count]
        if strange or not cores or len(set(cores)) != len(cores):
            what = f"names core {strange[0]}" if strange else "names a core twice"
            raise TargetError(
                f"a group of mesh '{self.name}' {what if cores else 'is empty'}; "
                f"cores 0 to {count - 1} are allowed, each once"
            )
        return cores


COLLECTIVE_FACTS = (
    "collective.start_us",
    "collective.slices",
    "collective.link_efficiency",
    "collective.reduce_passes",
)
"""What the costs of collectives need beside the levels (`simulator/collectives`)."""


def parse_mesh(name: str, text: str, folder: Path | None = None) -> Mesh:
    """Read a mesh from TOML text; `TargetError` says what is wrong with it.

    Args:
        folder: where a core that is a file is looked for.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TargetError(f"mesh '{name}' is not valid TOML: {error}") from error
    core, levels, doc = table.pop("core", None), table.pop("levels", None), table.pop("doc", "")
    if not isinstance(core, str):
        raise TargetError(f"mesh '{name}' names no core; write core = \"trn1\" at its top")
    if not isinstance(levels, list) or not all(isinstance(level, str) for level in levels):
        raise TargetError(
            f"mesh '{name}' does not list its levels; write levels = [\"chip\"] at its top, "
            "from the inside out"
        )
    file = (folder or Path()) / core
    target = load_target(str(file) if core.endswith(".toml") else core)
    data = Target.of(name, _FAMILY, parse_facts(name, table), str(doc))
    return Mesh(target, data, tuple(levels)).checked()


mesh_files = FileRegistry("mesh", "", TargetError, room="meshes")
"""TOML files by the names of the meshes they describe: those that ship, and those of extensions."""


def mesh_names() -> list[str]:
    """Names of the meshes that are known as files."""
    return list(mesh_files)


def load_mesh(name: str) -> Mesh:
    """A known mesh by name, or one from a path that ends in `.toml`.

    Raises:
        TargetError: unknown name, unreadable or invalid file.
    """
    if name.endswith(".toml"):
        path = Path(name)
        try:
            return parse_mesh(path.stem, ending(path).read_text(), path.parent)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise TargetError(f"mesh file '{name}' cannot be read: {reason}") from error
    if name not in mesh_files:
        raise TargetError(
            f"unknown mesh '{name}'; one of {', '.join(mesh_names())} or a .toml file is expected"
            f"{did_you_mean(name, mesh_names())}"
        )
    return parse_mesh(name, mesh_files[name].read_text())
