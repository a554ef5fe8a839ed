"""How many lines the sources have: the kernel, the rest of the core, each family, each capability.

    python benchmarks/lines.py    (or: make lines)

Lines are those of `wc -l`: docstrings, comments and blank lines count. Sources are the product's
files of Python code; tests, benchmarks and examples are none. The kernel's rooms are those that
docs/architecture.md lists. The last line printed is the one that CHANGELOG.md keeps.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]

FLOORS = (
    *("search_space", "codegen", "simulator", "records", "tuner", "compiler", "tilesmith"),
    *("families", "capabilities"),
)
"""Folders at the root that hold the product's sources."""


def kernel_rooms() -> list[str]:
    """The folders of the kernel, e.g. 'search_space/ir', as docs/architecture.md lists them."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    (block,) = re.findall(r"```kernel\n(.*?)```", page, re.DOTALL)
    return [line.split()[0].rstrip("/") for line in block.splitlines()]


def sources() -> list[Path]:
    """Every source of the product, relative to the root; what a link leads to is counted once."""
    found = (path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
    own = (path.relative_to(ROOT) for path in found if "__pycache__" not in path.parts)
    return sorted(p for p in own if not any((ROOT / up).is_symlink() for up in p.parents))


def part_of(source: Path, kernel: list[str]) -> str:
    """The part that a source is counted in: 'kernel', 'core', 'families/lpu', ..."""
    if source.parts[0] in ("families", "capabilities"):
        return "/".join(source.parts[:2]) if len(source.parts) > 2 else source.parts[0]
    return "kernel" if source.parent.as_posix() in kernel else "core"


def lines_by_part() -> Counter[str]:
    """Lines of each part."""
    kernel = kernel_rooms()
    counted: Counter[str] = Counter()
    for source in sources():
        counted[part_of(source, kernel)] += (ROOT / source).read_bytes().count(b"\n")
    return counted


def summary(counted: Counter[str]) -> str:
    """The line that the changelog keeps."""
    sums = Counter({"kernel": counted["kernel"], "core": counted["core"]})
    for part, lines in counted.items():
        if (kind := part.split("/")[0]) not in ("kernel", "core"):
            sums[kind] += lines
    told = ", ".join(
        f"{kind} {sums[kind]:,}" for kind in ("kernel", "core", "families", "capabilities")
    )
    return f"Lines: {told}, total {sums.total():,}"


def main() -> None:
    """Print a line a part, and the summary."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    counted = lines_by_part()
    for part in sorted(
        counted, key=lambda part: (part not in ("kernel", "core"), part != "kernel", part)
    ):
        name = {"core": "core, the rest"}.get(part, part)
        print(f"{name:28}{counted[part]:8,}")
    print(summary(counted))


if __name__ == "__main__":
    main()
