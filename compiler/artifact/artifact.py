"""The artifact: a compiled model as one `.tsm` file.

A zip archive, stored without compression:

    manifest.json      format version, name, target, threads, tensors, steps, report
    constants.bin      packed weights, from a page on
    code/N.o           code objects
    host/N.onnx        host nodes
    sha256             digest of the names, sizes and checksums of all of these

Reading trusts nothing: members are read by the names above only (nothing is ever extracted to
disk), none may be compressed or overlap another, so that reading never takes more memory than the
file has bytes; what was changed since it was written is refused by its digest, every size is
checked against the manifest, every offset against its region, and whatever does not fit is refused
with a sentence. The digest finds accidents and edits, not forgery: the code inside runs natively,
as a shared library's does; `compiler.artifact.signature` says whose it is.

Invariants: `read_artifact(write_artifact(r))` equals `r`, for every recipe; equal recipes are
written as equal bytes (no time or host of writing is in them).
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tilesmith.compiler.artifact import signature
from tilesmith.compiler.artifact.artifact_file import (
    CONSTANTS,
    DIGEST,
    Members,
    constants_of,
    digest,
    write_archive,
    write_members,
)
from tilesmith.compiler.artifact.control_format import ControlReader, read_sources
from tilesmith.compiler.artifact.steps_format import codes_json, ref_json, step_json
from tilesmith.compiler.artifact.updates_format import read_updates, updates_json
from tilesmith.compiler.graph.graph import TensorInfo
from tilesmith.compiler.graph.value_types import is_value_type
from tilesmith.compiler.recipe.program import (
    NOWHERE,
    CodeObject,
    DeviceStep,
    HostStep,
    IndexCheck,
    KernelStep,
    MoveStep,
    Place,
    Recipe,
    Report,
    Step,
    TensorRef,
)
from tilesmith.compiler.recipe.tensor_map import read_tensors, tensors_json
from tilesmith.search_space.expressions.dtypes import STORED, size_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import origin_named
from tilesmith.search_space.support.errors import ModelError, TargetError, TilesmithError
from tilesmith.search_space.support.files import ending

FORMAT = 3
"""Version of the layout described above."""

_OLDEST = 2
"""The oldest that is read: before format 3 no model had loops or branches in it, and indices were
checked against one extent."""

VARYING_FORMAT = 4
"""Version of the same layout with formulas of sizes in it (`compiler.varying.artifact`)."""

Read = TypeVar("Read")

_LIMIT = 1 << 36
"""Bytes: no member may claim to be larger, nor a model to need more of one memory."""

_MANIFEST_LIMIT = 1 << 26
"""Bytes: the manifest alone is read before its own size is known from anything else."""

THREADS = CHIPS = 1024
"""As many as the command line gives; each has a workspace of its own."""


def write_artifact(recipe: Recipe, path: Path) -> None:
    """Write a recipe; a file appears whole or not at all, a device or pipe is written into.

    Raises:
        InputError: the path cannot be written.
        JobError: the disk is full.
    """
    write_members(path, *_members(recipe))


def artifact_bytes(recipe: Recipe) -> bytes:
    """What `write_artifact` writes."""
    stream = io.BytesIO()
    write_archive(stream, *_members(recipe))
    return stream.getvalue()


def _members(recipe: Recipe) -> Members:
    protos = [step.proto for step in recipe.steps if isinstance(step, HostStep)]
    return manifest_text(_manifest(recipe)), recipe.pieces(), recipe.codes, protos


def manifest_text(manifest: dict[str, Any]) -> str:
    """A manifest as it is stored."""
    return json.dumps(manifest, indent=1)


def _manifest(recipe: Recipe) -> dict[str, Any]:
    report = dict(vars(recipe.report))
    report["host_nodes"] = list(recipe.report.host_nodes)
    return {
        "format": FORMAT,
        "name": recipe.name,
        "source": recipe.source,
        "target": json.loads(recipe.target.to_json()),
        "threads": recipe.threads,
        "chips": recipe.chips,
        "arena_bytes": recipe.arena_bytes,
        "constant_bytes": int(recipe.constants.size),
        "opsets": [list(pair) for pair in recipe.opsets],
        "inputs": [ref_json(ref) for ref in recipe.inputs],
        "outputs": [ref_json(ref) for ref in recipe.outputs],
        **codes_json(recipe.codes),
        "steps": [step_json(step) for step in recipe.steps],
        "report": report,
        "private": sorted(recipe.private),
        **updates_json(recipe),
        **tensors_json(recipe),
    }


def read_artifact(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        ModelError: the file is missing, damaged, no artifact, or of a newer format.
    """
    return read_by(path, Reader.recipe)


def read_by(
    path: Path | bytes,
    read: Callable[[Reader], Read],
    *,
    mapped: bool = True,
    trusted_key: str | Path | None = None,
) -> Read:
    """What `read` makes of an artifact; errors as `read_artifact`.

    Args:
        path: of its file; or its bytes, which this process has made or verified.
        mapped: whether its weights may stay in the file (`compiler.artifact.artifact_file`).
        trusted_key: the public key that has to have signed the file, whose weights are then read
            as they were verified; None: the environment's, if it names one.
    """
    if isinstance(path, bytes):
        with zipfile.ZipFile(io.BytesIO(path)) as archive:
            return read(Reader(archive, "in memory", len(path), mapped))
    if not path.exists():
        raise ModelError(f"artifact '{path}' does not exist")
    key = signature.trusted_key(trusted_key)
    try:
        if key is not None:
            content = signature.verified(path, key)
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                return read(Reader(archive, path.name, len(content), mapped=False))
        with zipfile.ZipFile(ending(path)) as archive:
            return read(Reader(archive, path.name, path.stat().st_size, mapped))
    except OSError as error:
        raise ModelError(f"artifact '{path}' cannot be read: {error.strerror}") from error
    except TilesmithError as error:
        if isinstance(error, TargetError):
            raise ModelError(f"artifact '{path}' is damaged: {error}") from error
        raise
    except Exception as error:  # a zip, JSON or field that is not what it should be
        raise ModelError(
            f"'{path}' is not a compiled model, or it is damaged "
            f"({type(error).__name__}: {' '.join(str(error).split())[:120]})"
        ) from error


class Reader:
    """One artifact being read; every check that fails says what was wrong."""

    def __init__(
        self, archive: zipfile.ZipFile, name: str, nbytes: int, mapped: bool = True
    ) -> None:
        self.archive = archive
        self.mapped = mapped
        self.name = name
        self._check_members(nbytes)
        self.manifest = json.loads(archive.read("manifest.json"))
        self.version = self.manifest["format"]
        if self.version not in range(_OLDEST, VARYING_FORMAT + 1):
            newer = isinstance(self.version, int) and self.version > VARYING_FORMAT
            advice = "install a newer one" if newer else "compile the model again"
            raise ModelError(
                f"artifact '{name}' has the format {self.version}; this version reads {_OLDEST} to "
                f"{VARYING_FORMAT}; {advice}"
            )
        if archive.read(DIGEST).decode("ascii", "replace") != digest(archive):
            raise self.damaged("it was changed after it was written")
        self.arena = self.natural(self.manifest.get("arena_bytes", 0), "arena_bytes")
        self.constants = self.natural(self.manifest["constant_bytes"], "constant_bytes")
        self.callers = self.natural(self.manifest.get("caller_bytes", 0), "caller_bytes")

    def codes(self) -> tuple[CodeObject, ...]:
        """All code objects."""
        raw = self.manifest["codes"]
        needs = self.manifest.get("needs", [[]] * len(raw))  # earlier versions wrote none
        return tuple(
            CodeObject(
                self.member(f"code/{number}.o", self.natural(size, "code")),
                self.natural(shared, "workspace"),
                self.natural(local, "workspace"),
                tuple(self.natural(nbytes, "an argument") for nbytes in needed),
            )
            for number, ((size, shared, local), needed) in enumerate(zip(raw, needs, strict=True))
        )

    def needs(self, number: Any, codes: Sequence[CodeObject], arguments: int) -> tuple[int, ...]:
        """What the code of a kernel needs behind each of so many arguments, in bytes."""
        if self.natural(number, "a code number") >= len(codes):
            raise self.damaged(f"it names the code object {number} of {len(codes)}")
        needs = codes[number].needs
        if needs and len(needs) != arguments:
            raise self.damaged(f"a kernel of {len(needs)} tensors is given {arguments}")
        return needs or (0,) * arguments

    def report(self, raw: Any) -> Report:
        """What became of a model."""
        return Report(**{**raw, "host_nodes": tuple(raw["host_nodes"])})

    def recipe(self) -> Recipe:
        """The whole artifact, of a model whose sizes do not vary."""
        if self.version == VARYING_FORMAT:
            raise ModelError(
                f"artifact '{self.name}' is of a model whose sizes vary; load it with "
                "tilesmith.load"
            )
        manifest = self.manifest
        codes = self.codes()
        numbers = iter(range(len(manifest["steps"])))
        steps = tuple(self._outer_step(step, numbers, codes) for step in manifest["steps"])
        inputs, outputs = (tuple(map(self._ref, manifest[end])) for end in ("inputs", "outputs"))
        self._check_made(outputs, inputs, steps)
        return Recipe(
            str(manifest["name"]), Target.from_json(json.dumps(manifest["target"])),
            max(1, self.natural(manifest["threads"], "threads", THREADS)),
            inputs, outputs, steps, codes, self.weights(),
            self.arena, tuple((str(d), int(v)) for d, v in manifest["opsets"]),
            self.report(manifest["report"]), str(manifest["source"]),
            private=frozenset(map(str, manifest.get("private", ()))),
            updates=read_updates(manifest, inputs, outputs, self.damaged),
            tensors=read_tensors(manifest, self.place, self.damaged),
            chips=max(1, self.natural(manifest.get("chips", 1), "chips", CHIPS)),
        )  # fmt: skip

    def damaged(self, what: str) -> ModelError:
        """The error that says what is wrong."""
        return ModelError(f"artifact '{self.name}' is damaged: {what}; compile the model again")

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

    def natural(self, value: Any, what: str, limit: int = _LIMIT) -> int:
        """A number that is not negative and no larger than `limit`."""
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
            raise self.damaged(f"{what} = {value!r} is out of range")
        return value

    def member(self, name: str, size: int) -> bytes:
        """The bytes of a member that has to have `size` of them."""
        self._check_size(name, size)
        return self.archive.read(name)

    def _check_size(self, name: str, size: int) -> None:
        nbytes = self.archive.getinfo(name).file_size
        if nbytes != size:
            raise self.damaged(f"{name} has {nbytes} bytes where {size} are declared")

    def weights(self) -> Any:
        """The constants; see `artifact_file.constants_of`."""
        self._check_size(CONSTANTS, self.constants)
        return constants_of(self.archive, self.mapped)

    def place(self, raw: Any, nbytes: int) -> Place:
        """A place with `nbytes` bytes behind it."""
        region, offset = raw
        offset = self.natural(offset, "an offset")
        sizes = {"arena": self.arena, "constant": self.constants, "caller": self.callers}
        sizes |= {"value": 0, "none": 0}
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

    def _ref(self, raw: Any) -> TensorRef:
        shape = raw["shape"]
        dims = None if shape is None else tuple(self.natural(s, "an extent") for s in shape)
        if raw["dtype"] not in (*STORED, "") and not is_value_type(str(raw["dtype"])):
            raise self.damaged(f"tensor '{raw['name']}' has the dtype {raw['dtype']!r}")
        info = TensorInfo(str(raw["name"]), raw["dtype"], dims)
        stored = raw.get("stored", "")
        if stored not in (*STORED, ""):
            raise self.damaged(f"tensor '{info.name}' is stored as {stored!r}")
        size = info.elements * size_of(stored or info.dtype) if info.known else 0
        place = self.place(raw["place"], size)
        if place.region in ("arena", "constant") and not info.known:
            raise self.damaged(f"tensor '{info.name}' has no shape")
        return TensorRef(info, place, stored)

    def _check(self, raw: Any) -> IndexCheck:
        indices = self._ref(raw["indices"])
        if indices.place.region != "arena":
            raise self.damaged(f"the indices '{indices.info.name}' lie at {indices.place.region}")
        given = raw["extents"] if "extents" in raw else [raw["extent"]]
        extents = tuple(self.natural(extent, "an extent") for extent in given)
        if not extents or indices.info.elements % len(extents):
            raise self.damaged(f"the indices '{indices.info.name}' are of {len(extents)} axes")
        return IndexCheck(str(raw["node"]), indices, extents)

    def _check_made(
        self, outputs: Sequence[TensorRef], inputs: Sequence[TensorRef], steps: Sequence[Step]
    ) -> None:
        """Refuse inputs that lie nowhere, and outputs that nothing on the host makes."""
        written = {ref.info.name for ref in inputs} | {
            ref.info.name for step in steps if isinstance(step, HostStep) for ref in step.outputs
        }
        for ref in (*inputs, *outputs):
            lost = ref.place.region == "value" and ref.info.name not in written
            if lost or ref.place.region == "none":
                raise self.damaged(f"the tensor '{ref.info.name}' lies nowhere")

    def _control(self, raw: Any, codes: Sequence[CodeObject]) -> DeviceStep:
        def inner(part: Any) -> DeviceStep:
            step = None if "host" in part else self._step(part, None, codes)
            looked_at = isinstance(step, KernelStep) and step.checks
            if step is None or isinstance(step, HostStep) or looked_at:
                raise self.damaged("a loop or branch has steps on the host")
            return step

        regions = {"arena": self.arena, "constant": self.constants}
        return ControlReader(regions, self.damaged, inner).step(raw)

    def _outer_step(self, raw: Any, numbers: Any, codes: Sequence[CodeObject]) -> Step:
        step = self._step(raw, numbers, codes)
        if isinstance(step, MoveStep) and step.counter != NOWHERE:
            raise self.damaged("a move counts with no loop")
        return step

    def _step(self, raw: Any, numbers: Any, codes: Sequence[CodeObject]) -> Step:
        if "kernel" in raw:
            code, given = raw["code"], raw["arguments"]
            places = tuple(map(self.argument, given, self.needs(code, codes, len(given))))
            name, workload, config = (str(raw[key]) for key in ("kernel", "workload", "config"))
            threads = self.natural(raw.get("threads", 0), "threads", THREADS)
            return KernelStep(
                name, workload, config, origin_named(str(raw["origin"])), code, places,
                tuple(map(self._check, raw.get("checks", ()))), threads, read_sources(raw),
            )  # fmt: skip
        if "host" not in raw:
            return self._control(raw, codes)
        proto = self.member(f"host/{next(numbers)}.onnx", self.natural(raw["bytes"], "a size"))
        return HostStep(
            str(raw["host"]), str(raw["operator"]), proto,
            tuple(self._ref(ref) for ref in raw["inputs"]),
            tuple(self._ref(ref) for ref in raw["outputs"]),
            read_sources(raw),
        )  # fmt: skip
