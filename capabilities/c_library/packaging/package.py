"""What build systems read about a library: a package for CMake, a file for pkg-config.

    find_package(model CONFIG)                       with -Dmodel_DIR=FOLDER or CMAKE_PREFIX_PATH
    target_link_libraries(main PRIVATE model::model)              or just model

    cc main.c $(pkg-config --cflags --libs FOLDER/model.pc)

Both name the library after its file (without `lib` and the suffix) and find it where they lie
themselves, so that the folder may be moved. Invariant: file names are data: whatever they hold ends
no string of either.
"""

from pathlib import Path

from tilesmith.capabilities.c_library.code.plan import LibraryPlan
from tilesmith.compiler.backends.shipping import package_name

_CMAKE = """\
# {name}, compiled by Tilesmith: find_package({name} CONFIG), then link to {name}::{name}.
{dependencies}\
{weights}\
if(NOT TARGET {name}::{name})
    add_library({name}::{name} {kind} IMPORTED)
    set_target_properties({name}::{name} PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_LIST_DIR}}"
{properties})
endif()
if(NOT TARGET {name})
    add_library({name} INTERFACE IMPORTED)
    set_target_properties({name} PROPERTIES INTERFACE_LINK_LIBRARIES {name}::{name})
endif()
"""

_THREADS = """\
include(CMakeFindDependencyMacro)
find_dependency(Threads)
"""

_PKG_CONFIG = """\
Name: {name}
Description: {name}, compiled by Tilesmith
Version: 0
Cflags: -I${{pcfiledir}}
Libs: ${{pcfiledir}}/{file}{after}
"""


def config(plan: LibraryPlan, kind: str, output: Path) -> str:
    """The package for CMake; the variable NAME_WEIGHTS is where the file of weights is."""
    name, here = package_name(output), "${CMAKE_CURRENT_LIST_DIR}"
    where, needs = f'"{here}/{_cmake(output.name)}"', [*_needs(plan, kind)]
    links = ";".join("Threads::Threads" if need == "pthread" else need for need in needs)
    if kind == "object":
        lines = [f'INTERFACE_LINK_LIBRARIES "{here}/{_cmake(output.name)};{links}"']
    else:
        lines = [f"IMPORTED_LOCATION {where}"]
        lines += [f'INTERFACE_LINK_LIBRARIES "{links}"'] if links else []
        lines += [f'IMPORTED_SONAME "{_cmake(output.name)}"'] if kind == "library" else []
    threads = _THREADS if "pthread" in needs else ""
    weights = f'set({name}_WEIGHTS "{here}/{_cmake(plan.file)}")\n' if plan.file else ""
    return _CMAKE.format(
        name=name,
        dependencies=threads,
        weights=weights,
        kind={"library": "SHARED", "archive": "STATIC", "object": "INTERFACE"}[kind],
        properties="\n".join(f"        {line}" for line in lines),
    )


def pkg_config(plan: LibraryPlan, kind: str, output: Path) -> str:
    """The file for pkg-config; a program finds a shared library where it lies when it runs, too."""
    file = "".join(f"\\{c}" if c in " \\'\"$#()" else c for c in output.name)
    after = "".join(f" -l{need}" for need in _needs(plan, kind))
    if kind == "library":
        after += " -Xlinker -rpath -Xlinker ${pcfiledir}"  # -Wl: pkgconf would escape no blanks
    return _PKG_CONFIG.format(name=package_name(output), file=file, after=after)


def _needs(plan: LibraryPlan, kind: str) -> list[str]:
    """Libraries of the system's that a program is linked with beside; a shared one says so."""
    if kind == "library":
        return []
    return ["m", *(["pthread"] if plan.team > 1 else [])]


def _cmake(text: str) -> str:
    """The inside of a quoted argument."""
    return "".join(f"\\{c}" if c in '\\"$;' else c for c in text)
