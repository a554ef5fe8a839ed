"""Parameters that windows over images share, as workloads write them: steps and padding."""

from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.workload import Workload


def pair_of(workload: Workload, name: str) -> tuple[int, int]:
    """'2' -> (2, 2); '2x1' -> (2, 1). Raises `WorkloadError` for anything else."""
    sizes = workload.shape(name)
    if len(sizes) not in (1, 2) or min(sizes) < 1:
        raise WorkloadError(f"{name}={workload[name]}: one or two positive integers, as 2 or 2x1")
    return sizes[0], sizes[-1]


def sides_of(workload: Workload) -> tuple[int, int, int, int]:
    """Padding (top, left, bottom, right): '1' -> all sides; '1x2' -> (vertical, horizontal);
    'TxLxBxR' -> each side. Raises `WorkloadError` for anything else."""
    match workload.shape("pad"):
        case (every,):
            return every, every, every, every
        case (vertical, horizontal):
            return vertical, horizontal, vertical, horizontal
        case (top, left, bottom, right):
            return top, left, bottom, right
        case _:
            raise WorkloadError(
                f"pad={workload['pad']}: one, two or four integers, as 1 or 0x1x0x1"
            )
