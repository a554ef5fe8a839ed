"""`Chip`: the facts of an LPU-like target that scheduling, laws and execution read, typed.

Places. Functional slices stand in a row; `position` counts stream registers from VXM in the middle,
negative in the west hemisphere. A token moves from one position to the next each cycle; MEM slices
share a position in groups.

    MXM  SXM  MEM 44..1  VXM  MEM 1..44  SXM  MXM      (links stand beside MXM)
    -13  -12  -11..-1     0    1..11     12   13

MEM slices are numbered 0 to 43 in the west and 44 to 87 in the east, from VXM outward; MXM planes 0
and 1 are in the west. Every queue of instructions has a number: MEM slices first, then the ALUs of
VXM, MXM (four kinds a plane), SXM, links.
"""

from dataclasses import dataclass
from functools import cached_property

from tilesmith.families.lpu.codegen.dataflow import LANES
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TargetError

DELAYS = (
    "read", "write", "gather", "alu", "shuffle", "transpose", "product", "accumulate", "link",
)  # fmt: skip
MXM_KINDS = ("load", "install", "move", "accumulate")
"""Queues of an MXM plane: LW, IW, ABC and ACC."""

SXM_KINDS = ("shifter", "permuter", "distributor", "transposer")

LINKS_A_QUEUE = 2
"""Links that a queue serves: with 88 MEM slices, 16 ALUs, 16 queues of MXM and 16 of SXM, eight of
them make the 144 queues of the paper."""


@dataclass(frozen=True)
class Chip:
    """One chip; build it with `Chip.of`. Times in cycles; `slices` are of both hemispheres.

    Attributes:
        delays: cycles from an instruction's operands to its result, by `DELAYS`.
        sxm: values a hemisphere's SXM takes at once, by `SXM_KINDS`.
        link_cycles: between two byte planes on one link.
    """

    target: Target
    ghz: float
    tiles: int
    slices: int
    bank_words: int
    slices_a_hop: int
    streams: int
    k_float16: int
    load_streams: int
    install: int
    alus: int
    sxm: tuple[int, int, int, int]
    delays: tuple[int, ...]
    links: int
    link_cycles: int

    @classmethod
    def of(cls, target: Target) -> "Chip":
        """The chip a target describes.

        Raises:
            TargetError: a fact is missing or of the wrong kind, or the target has a roofline only.
        """
        if target.family != "lpu":
            raise TargetError(
                f"target '{target.name}' is of family '{target.family}'; "
                "chains are placed on one of family 'lpu'"
            )
        number, integer = target.number, target.integer
        ghz = number("clock.ghz")
        words = integer("mem.words")
        if words % 2:
            raise TargetError(
                f"target '{target.name}': mem.words = {words} is out of range; "
                "allowed: even numbers (half of a slice's words lie in each bank)"
            )
        return cls(
            target=target,
            ghz=ghz,
            tiles=integer("vector.tiles"),
            slices=2 * integer("mem.slices"),
            bank_words=words // 2,
            slices_a_hop=integer("mem.slices_a_hop"),
            streams=integer("stream.each_way"),
            k_float16=integer("mxm.k_float16"),
            load_streams=integer("mxm.load_streams"),
            install=integer("mxm.install"),
            alus=integer("vxm.alus"),
            sxm=tuple(integer(f"sxm.{kind}s") for kind in SXM_KINDS),  # type: ignore[arg-type]
            delays=tuple(integer(f"delay.{name}") for name in DELAYS),
            links=integer("c2c.links"),
            link_cycles=-int(-LANES * ghz // number("c2c.gbps")),
        )

    def delay(self, name: str) -> int:
        """Cycles from operands to result of a function, by its name in `DELAYS`."""
        return self._delays[name]

    @cached_property
    def _delays(self) -> dict[str, int]:
        return dict(zip(DELAYS, self.delays, strict=True))

    @cached_property
    def half(self) -> int:
        """MEM slices of a hemisphere."""
        return self.slices // 2

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The position of every MEM slice."""
        outward = [1 + n // self.slices_a_hop for n in range(self.half)]
        return (*(-p for p in outward), *outward)

    @cached_property
    def sxm_place(self) -> int:
        """The position of the eastern SXM."""
        return self.places[-1] + 1

    @cached_property
    def mxm_place(self) -> int:
        """The position of the eastern MXM: the last on which streams go."""
        return self.places[-1] + 2

    @cached_property
    def queues(self) -> tuple[str, ...]:
        """The name of every queue, by number."""
        names = [f"mem.{'we'[n >= self.half]}{n % self.half + 1}" for n in range(self.slices)]
        names += [f"vxm.{n}" for n in range(self.alus)]
        names += [f"mxm.{plane}.{kind}" for plane in range(4) for kind in MXM_KINDS]
        for side in "we":
            for kind, count in zip(SXM_KINDS, self.sxm, strict=True):
                names += [f"sxm.{side}.{kind}.{n}" for n in range(count)]
        return (*names, *(f"c2c.{n}" for n in range(-(-self.links // LINKS_A_QUEUE))))

    @cached_property
    def vxm_queue(self) -> int:
        """The queue of the first ALU."""
        return self.slices

    def mxm_queue(self, plane: int, kind: str) -> int:
        """A queue of an MXM plane, by its kind in `MXM_KINDS`."""
        return self.slices + self.alus + plane * len(MXM_KINDS) + MXM_KINDS.index(kind)

    def sxm_queue(self, east: bool, kind: str) -> int:
        """The first queue of a kind of SXM unit in a hemisphere."""
        first = self.slices + self.alus + 4 * len(MXM_KINDS) + int(east) * sum(self.sxm)
        return first + sum(self.sxm[: SXM_KINDS.index(kind)])

    def link_queue(self, link: int) -> int:
        """The queue of a link."""
        first = self.slices + self.alus + 4 * len(MXM_KINDS) + 2 * sum(self.sxm)
        return first + link // LINKS_A_QUEUE

    @cached_property
    def sram_bytes(self) -> int:
        """Bytes of MEM."""
        return self.slices * 2 * self.bank_words * LANES

    def cycles_of_lanes(self, first: int, k: int) -> int:
        """Cycles that MXM takes over lanes `first` to before `k` of a float16 vector."""
        return -(-k // self.k_float16) - first // self.k_float16

    def peak_flops(self, dtype: str) -> float:
        """Operations a second of MXM; a multiply and an add are two. Other types than float16 and
        bytes are VXM's: an operation an ALU."""
        each = {"int8": 4 * LANES, "uint8": 4 * LANES, "float16": 2 * self.k_float16}.get(dtype)
        work = 2 * each * LANES if each else self.alus * LANES
        return work * self.ghz * 1e9

    @cached_property
    def bytes_per_second(self) -> float:
        """What MEM slices read and write together."""
        return 2 * self.slices * LANES * self.ghz * 1e9
