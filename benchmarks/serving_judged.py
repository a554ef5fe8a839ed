"""How far estimates of serving are from published measurements that no constant was fitted to.

    python -m benchmarks.serving_judged

Decoders (`serving_points/judged.csv`): other models, batches and lengths on trn1, and inf2 and
trn2, a table and errors each. Encoders (`serving_points/passes.csv`): passes a second of all cores
of one chip, each with a copy of the model.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence

try:
    import numpy as np

    from benchmarks.serving import FOLDER, Point, points, published, summary, table
    from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
    from tilesmith.capabilities.planning.estimates.estimate import Estimate, estimate
    from tilesmith.search_space.meshes.mesh import load_mesh
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

CHIPS = {"trn1": "trn1.2xlarge", "inf2": "inf2.xlarge"}


def judged() -> list[tuple[Point, Estimate]]:
    """Every decoder with what is estimated of it."""
    return [(point, point.estimated()) for point in points("judged")]


def passes() -> list[tuple[str, float, float]]:
    """Every encoder: what it is, passes a second as published, and as estimated."""
    with (FOLDER / "passes.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        cores, batch, tokens = (int(row[name] or 1) for name in ("cores", "batch", "tokens"))
        on = Deployment(load_mesh(CHIPS[row["instance"]]), data=cores)
        ours = estimate(published(row["model"]), on, DeploymentLoad(cores * batch, tokens, 1))
        name = f"{row['instance']:5}{row['model']:28}{batch:3} x {cores}"
        found.append((name, float(row["passes_per_s"]), ours.tokens_per_s))
    return found


def _print_passes(found: Sequence[tuple[str, float, float]]) -> None:
    print("\nencoders, passes a second")
    for name, theirs, ours in found:
        print(f"{name}   {theirs:8.1f} {ours:8.1f} {ours / theirs - 1:+6.0%}")
    off = np.array([ours / theirs - 1 for _, theirs, ours in found])
    print(f"mean error {np.abs(off).mean():.1%}, worst {np.abs(off).max():.0%}, "
          f"mean of signed ones {off.mean():+.1%}")  # fmt: skip


def main() -> None:
    """See the module's docstring."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    found = judged()
    for mesh in dict.fromkeys(point.deployment.mesh.name for point, _ in found):
        print(mesh)
        print(table([(p, e) for p, e in found if p.deployment.mesh.name == mesh]), "\n")
    print(f"all {len(found)}")
    print("\n".join(summary(found)))
    _print_passes(passes())


if __name__ == "__main__":
    main()
