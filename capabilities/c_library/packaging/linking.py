"""Which program makes a shared library of an object: the system's C compiler, else ziglang's.

`$CC` counts where code is for this kind of machine; for others the cross compiler of that name is
taken (`aarch64-linux-gnu-gcc`). The wheel `ziglang` has a linker and the C libraries of both.
"""

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tilesmith.codegen.host.machine import host_target
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import DependencyError, InputError, JobError

_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 600
LINKER = "TILESMITH_LINKER"
"""Names another program, with the arguments it begins with."""


def linker_of(target: Target) -> tuple[str, ...]:
    """The command that links for a target, without what it links.

    Raises:
        DependencyError: there is none.
        InputError: `$TILESMITH_LINKER` names none.
    """
    triple = target.text("isa.triple")
    if named := shlex.split(os.environ.get(LINKER, "")):
        if shutil.which(named[0]) is None:
            raise InputError(f"{LINKER} names '{named[0]}', which is no program here")
        return tuple(named)
    architecture = triple.split("-")[0]
    if architecture == host_target().text("isa.triple").split("-")[0]:
        own = shlex.split(os.environ.get("CC", ""))
        if own and shutil.which(own[0]):
            return tuple(own)
        names: tuple[str, ...] = _COMPILERS
    else:
        names = (f"{architecture}-linux-gnu-gcc",)
    for name in names:
        if path := shutil.which(name):
            return (path,)
    if find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-gnu")
    raise DependencyError(
        f"nothing here links shared libraries for {architecture}: install a C compiler "
        f"({' or '.join(names)}), or pip install 'tilesmith[library]'; --emit object and --emit "
        "archive need none"
    )


def link(linker: tuple[str, ...], objects: Path, library: Path, name: str) -> None:
    """Make a shared library.

    Args:
        objects: the object.
        library: where to write it.
        name: what programs that use it look for.

    Raises:
        JobError: the linker fails, with the first line of what it says.
    """
    command = [
        *linker, "-shared", "-o", str(library), str(objects), f"-Wl,-soname,{name}",
        "-Wl,-z,noexecstack", "-Wl,-z,relro", "-lm", "-lpthread",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"took over {_SECONDS} s"
        raise JobError(f"'{linker[0]}' cannot link '{name}': {reason}") from error
    if done.returncode:
        said = next(iter(done.stderr.strip().splitlines()), "it does not say why")
        raise JobError(f"'{linker[0]}' cannot link '{name}': {said[:300]}")
