"""What artifacts of every kind have, read as what nobody trusts.

Every check that fails says what was wrong: sizes are checked against the manifest, offsets against
their regions, numbers against limits.
"""

import json
import zipfile
from typing import Any

from numpy.typing import NDArray

from tilesmith.compiler.artifact.artifact_file import CONSTANTS, DIGEST, constants_of, digest
from tilesmith.compiler.artifact.manifest import OLDEST, VARYING_FORMAT
from tilesmith.compiler.graph.value_types import is_value_type
from tilesmith.compiler.recipe.program import CodeObject, Place, Report
from tilesmith.search_space.expressions.dtypes import STORED
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import origin_named
from tilesmith.search_space.support.errors import ModelError

LIMIT = 1 << 36
"""Bytes: no member may claim to be larger, nor a model to need more of one memory."""

_MANIFEST_LIMIT = 1 << 26
"""Bytes: the manifest alone is read before its own size is known from anything else."""

THREADS = CHIPS = 1024
"""As many as the command line gives; each has a workspace of its own."""


class ManifestReader:
    """One artifact being read.

    Raises (on construction):
        ModelError: it is of a format that this version does not read, or was changed since it was
            written.
    """

    def __init__(self, archive: zipfile.ZipFile, name: str, nbytes: int, mapped: bool) -> None:
        self.archive, self.mapped, self.name = archive, mapped, name
        self._check_members(nbytes)
        self.manifest = json.loads(archive.read("manifest.json"))
        self.version = self.manifest["format"]
        if self.version not in range(OLDEST, VARYING_FORMAT + 1):
            newer = isinstance(self.version, int) and self.version > VARYING_FORMAT
            advice = "install a newer one" if newer else "compile the model again"
            raise ModelError(
                f"artifact '{name}' has the format {self.version}; this version reads {OLDEST} to "
                f"{VARYING_FORMAT}; {advice}"
            )
        if archive.read(DIGEST).decode("ascii", "replace") != digest(archive):
            raise self.damaged("it was changed after it was written")
        arena, constants, callers = (
            self.natural(self.manifest.get(f"{region}_bytes", 0), f"{region}_bytes")
            for region in ("arena", "constant", "caller")
        )
        self.regions = {"arena": arena, "constant": constants, "caller": callers}
        self.codes = self._codes()
        self._hosts = 0

    def damaged(self, what: str) -> ModelError:
        """The error that says what is wrong."""
        return ModelError(f"artifact '{self.name}' is damaged: {what}; compile the model again")

    def natural(self, value: Any, what: str, limit: int = LIMIT) -> int:
        """A number that is not negative and no larger than `limit`."""
        if not is_whole(value) or not 0 <= value <= limit:
            raise self.damaged(f"{what} = {value!r} is out of range")
        return int(value)

    # -- members --------------------------------------------------------------------------------
    def _check_members(self, nbytes: int) -> None:
        """Refuse what would be more in memory than in the file of `nbytes`."""
        members = self.archive.infolist()
        if any(m.compress_type != zipfile.ZIP_STORED or m.flag_bits & 1 for m in members):
            raise self.damaged("it has compressed or encrypted members")
        if len({m.filename for m in members}) < len(members):
            raise self.damaged("it has two members of one name")
        if sum(member.file_size for member in members) > nbytes:
            raise self.damaged("its members claim to be larger than the file")
        if self.archive.getinfo("manifest.json").file_size > _MANIFEST_LIMIT:
            raise self.damaged(f"its manifest has more than {_MANIFEST_LIMIT >> 20} MiB")

    def _member(self, name: str, size: int) -> bytes:
        """The bytes of a member that has to have `size` of them."""
        self._check_size(name, size)
        return self.archive.read(name)

    def _check_size(self, name: str, size: int) -> None:
        nbytes = self.archive.getinfo(name).file_size
        if nbytes != size:
            raise self.damaged(f"{name} has {nbytes} bytes where {size} are declared")

    def _codes(self) -> tuple[CodeObject, ...]:
        raw = self.manifest["codes"]
        needs = self.manifest.get("needs", [[]] * len(raw))  # earlier versions wrote none
        return tuple(
            CodeObject(
                self._member(f"code/{number}.o", self.natural(size, "code")),
                self.natural(shared, "workspace"),
                self.natural(local, "workspace"),
                tuple(self.natural(nbytes, "an argument") for nbytes in needed),
            )
            for number, ((size, shared, local), needed) in enumerate(zip(raw, needs, strict=True))
        )

    def proto(self, raw: Any) -> bytes:
        """The node of the next step on the host."""
        name, size = f"host/{self._hosts}.onnx", self.natural(raw["bytes"], "a size")
        self._hosts += 1
        return self._member(name, size)

    def weights(self) -> NDArray[Any]:
        """The constants; see `artifact_file.constants_of`."""
        self._check_size(CONSTANTS, self.regions["constant"])
        return constants_of(self.archive, self.mapped)

    # -- what recipes of both kinds have ----------------------------------------------------------
    def head(self) -> tuple[str, Target, int]:
        """The model's name, its target, and how many threads run a kernel."""
        manifest = self.manifest
        threads = max(1, self.natural(manifest["threads"], "threads", THREADS))
        return str(manifest["name"]), Target.from_json(json.dumps(manifest["target"])), threads

    def opsets(self) -> tuple[tuple[str, int], ...]:
        """Of host nodes."""
        return tuple((str(domain), int(v)) for domain, v in self.manifest["opsets"])

    def report(self, raw: Any) -> Report:
        """What became of a model."""
        return Report(**{**raw, "host_nodes": tuple(raw["host_nodes"])})

    def dtype(self, name: str, dtype: Any) -> str:
        """The element type of a tensor; "" for one that only running tells."""
        if dtype not in (*STORED, "") and not is_value_type(str(dtype)):
            raise self.damaged(f"tensor '{name}' has the dtype {dtype!r}")
        return str(dtype)

    def stored(self, name: str, raw: Any) -> str:
        """The element type of a tensor in memory, where that is another."""
        stored = raw.get("stored", "")
        if stored not in (*STORED, ""):
            raise self.damaged(f"tensor '{name}' is stored as {stored!r}")
        return str(stored)

    def place(self, raw: Any, nbytes: int) -> Place:
        """A place with `nbytes` bytes behind it."""
        region, offset = raw
        offset = self.natural(offset, "an offset")
        sizes = {**self.regions, "value": 0, "none": 0}
        if region not in sizes:
            raise self.damaged(f"it names the region {region!r}")
        behind = offset + max(nbytes, region == "caller") > sizes[region]
        if region not in ("value", "none") and behind:
            raise self.damaged(f"a tensor ends behind the {region}")
        return Place(region, offset)

    def argument(self, raw: Any, needs: int = 0) -> Place:
        """The place of a kernel's tensor of at least `needs` bytes: none at all where these are 0,
        or anywhere in the device's memory.

        Not only on cache lines: parts of a join lie one after the other, whatever their sizes.
        """
        place = self.place(raw, needs)
        if place.region == "value" or (place.region == "none" and needs):
            raise self.damaged(f"a kernel's tensor lies at {place.region} + {place.offset}")
        return place

    def kernel(self, raw: Any) -> tuple[str, str, str, str, int]:
        """A kernel's name, workload, configuration, origin and number of its code."""
        number = self.natural(raw["code"], "a code number")
        if number >= len(self.codes):
            raise self.damaged(f"it names the code object {number} of {len(self.codes)}")
        name, workload, config, origin = (
            str(raw[key]) for key in ("kernel", "workload", "config", "origin")
        )
        return name, workload, config, origin_named(origin), number

    def needs(self, code: int, arguments: int) -> tuple[int, ...]:
        """What the code of a kernel needs behind each of so many arguments, in bytes."""
        needs = self.codes[code].needs
        if needs and len(needs) != arguments:
            raise self.damaged(f"a kernel of {len(needs)} tensors is given {arguments}")
        return needs or (0,) * arguments


def is_whole(value: Any) -> bool:
    """Whether JSON had a whole number here."""
    return isinstance(value, int) and not isinstance(value, bool)


def read_sources(raw: Any) -> tuple[str, ...]:
    """Names of the model's nodes; artifacts of older versions have none."""
    return tuple(map(str, raw.get("sources", ())))
