"""How far a tensor is from its reference: the measures, and what each means.

    absolute error of an element    |ours - reference|
    relative error of an element    |ours - reference| / max(|reference|, rms)

where `rms` is the root mean square of the whole reference: an element close to zero among larger
ones is not held to digits that nobody could compute, and a tensor of few large values and many
small ones (which the largest value would hide) is held to all of them. Elements that are the same
infinity, or not a number on both sides, agree; an element that is a number on one side alone is
infinitely wrong.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorError:
    """One tensor beside its reference.

    Attributes:
        max_abs, mean_abs: largest and mean absolute error of an element.
        max_rel, mean_rel: relative, as the module's docstring defines it.
        cosine: of the angle between both, as vectors; 1 where both are zero.
        distance: the norm of the difference.
        nan, inf: elements that are no number, or infinite, in ours and not in the reference.
        reference_nan: elements that are no number in the reference.
        worst: index of the element with the largest relative error.
    """

    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float
    cosine: float
    distance: float
    nan: int = 0
    inf: int = 0
    reference_nan: int = 0
    worst: tuple[int, ...] = ()


def tensor_error(tensor: Array, wanted: Array) -> TensorError:
    """Compare a tensor with its reference; one of another shape is infinitely wrong."""
    if np.shape(tensor) != np.shape(wanted):
        return TensorError(math.inf, math.inf, math.inf, math.inf, 0.0, math.inf)
    ours, theirs = _wide(tensor).reshape(-1), _wide(wanted).reshape(-1)
    if ours.size == 0:
        return TensorError(0.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    with np.errstate(all="ignore"):
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        both = np.isfinite(ours) & np.isfinite(theirs)
        absolute = np.where(same, 0.0, np.where(both, np.abs(ours - theirs), math.inf))
        scale = rms(theirs)
        bound = np.maximum(np.where(np.isfinite(theirs), np.abs(theirs), 0.0), scale)
        relative = np.where(absolute == 0.0, 0.0, absolute / bound)
    worst = int(np.argmax(relative))
    place = np.unravel_index(worst, np.shape(tensor)) if np.ndim(tensor) else ()
    nan = np.isnan(ours) & ~np.isnan(theirs)
    inf = np.isinf(ours) & ~np.isinf(theirs) & ~np.isnan(theirs)
    return TensorError(
        float(absolute.max()),
        float(absolute.mean()),
        float(relative.max()),
        float(relative.mean()),
        _cosine(ours[both], theirs[both]),
        distance(tensor, wanted),
        int(nan.sum()),
        int(inf.sum()),
        int(np.isnan(theirs).sum()),
        tuple(int(axis) for axis in place),
    )


def rms(array: Array) -> float:
    """The root mean square of the finite elements; 0 without any."""
    flat = _wide(array).reshape(-1)
    flat = flat[np.isfinite(flat)]
    largest = float(np.abs(flat).max()) if flat.size else 0.0
    if largest == 0.0:
        return 0.0
    return largest * math.sqrt(float(np.mean((flat / largest) ** 2)))


def distance(tensor: Array, wanted: Array) -> float:
    """The norm of the difference; infinite where one side alone has a number, or another shape."""
    if np.shape(tensor) != np.shape(wanted):
        return math.inf
    ours, theirs = _wide(tensor).reshape(-1), _wide(wanted).reshape(-1)
    with np.errstate(all="ignore"):
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        away = np.where(same, 0.0, ours - theirs)
    if not np.isfinite(away).all():
        return math.inf
    largest = float(np.abs(away).max()) if away.size else 0.0
    return largest * float(np.linalg.norm(away / largest)) if largest else 0.0


def _cosine(ours: Array, theirs: Array) -> float:
    first, second = (float(np.abs(part).max()) if part.size else 0.0 for part in (ours, theirs))
    if first == 0.0 or second == 0.0:
        return 1.0 if first == second else 0.0
    ours, theirs = ours / first, theirs / second
    product = float(np.dot(ours, theirs))
    return product / (float(np.linalg.norm(ours)) * float(np.linalg.norm(theirs)))


def _wide(array: Array) -> Array:
    kind = np.asarray(array)
    return kind if kind.dtype == np.float64 else kind.astype(np.float64)
