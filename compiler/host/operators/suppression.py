"""NonMaxSuppression on the host: loops over boxes, run as native code.

How many boxes remain is known only once it is run, so no kernel of fixed shapes has it. Boxes of a
class are taken from a heap, the best first, as long as some are wanted; areas are computed once for
all classes. Invariant: float32 operations in the order of onnxruntime's, so that the same boxes are
found where thresholds are met to the last bit; equal scores in the order of the boxes.
"""

from typing import Any, NamedTuple

import numpy as np

from tilesmith.codegen.compiled import Ints, Singles, compiled
from tilesmith.compiler.host.operators.call import Array, OperatorCall, Results, host_operator
from tilesmith.search_space.support.errors import JobError

_BUCKETS = 256
"""Boxes of a class are put into so many buckets by their scores, and only those looked at are
sorted."""


class Boxes(NamedTuple):
    """The boxes of all images: for each the lower and upper end along two axes, and the area."""

    ends: Singles
    areas: Singles


class _Choice(NamedTuple):
    """What is chosen.

    Attributes:
        images, classes, boxes: numbers of images, of classes, of boxes in an image.
        most: boxes to choose of a class.
        bounded: whether only scores above a threshold count.
        score, overlap: that threshold, and the share of two boxes' union above which one goes.
    """

    images: int
    classes: int
    boxes: int
    most: int
    bounded: int
    score: float
    overlap: float


@host_operator("NonMaxSuppression")
def non_max_suppression(call: OperatorCall) -> Results:
    """(image, class, box) of the boxes that remain, the best of each class first; opsets 10, 11."""
    boxes, scores = call.input(0), call.input(1)
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4 or (
        (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2])
    ):  # fmt: skip
        raise JobError(f"boxes of shape {boxes.shape} do not fit scores of shape {scores.shape}")
    most, overlap, score = (_number(call.input(position)) for position in (2, 3, 4))
    images, classes, count = scores.shape
    most = int(min(max(most, 0), count))
    bounded = int(call.input(4) is not None)
    choice = _Choice(images, classes, count, most, bounded, float(score), float(overlap))
    ends = _ends(boxes.astype(np.float32), bool(call.attributes.get("center_point_box", 0)))
    sizes = ends[..., 2:] - ends[..., :2]
    table = Boxes(
        np.ascontiguousarray(ends).reshape(-1),
        np.ascontiguousarray(sizes[..., 0] * sizes[..., 1]).reshape(-1),
    )
    flat = np.ascontiguousarray(scores, dtype=np.float32).reshape(-1)
    room, first = np.empty(2 * count, np.int64), np.empty(_BUCKETS + 1, np.int64)
    kept = np.empty(3 * images * classes * most, np.int64)
    number = choose_all(table, flat, choice, room, first, kept)
    return (kept[: 3 * number].reshape(-1, 3).copy(),)


def _number(value: Any) -> float:
    return 0.0 if value is None else value.reshape(-1)[0]


def _ends(boxes: Array, centred: bool) -> Array:
    """(lower x, lower y, upper x, upper y) of boxes given by two corners (y before x), or by their
    centre and size (x before y)."""
    if centred:
        half = boxes[..., 2:] / np.float32(2)
        return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)
    one, two = boxes[..., 1::-1], boxes[..., :1:-1]
    return np.concatenate([np.minimum(one, two), np.maximum(one, two)], axis=-1)


@compiled
def choose_all(
    boxes: Boxes, scores: Singles, choice: _Choice, room: Ints, first: Ints, kept: Ints
) -> int:
    """How many boxes remain; `kept` gets image, class and number of each.

    `room` is for two numbers a box, `first` for the buckets' ends.
    """
    total = 0
    for image in range(choice.images):
        for kind in range(choice.classes):
            start = (image * choice.classes + kind) * choice.boxes
            sort_into_buckets(scores, start, choice, room, first)
            number = 0
            for bucket in range(_BUCKETS):
                if number >= choice.most:
                    break
                number = choose(
                    boxes, scores, choice, room, kept, start, image, kind, total, number,
                    first[bucket], first[bucket + 1],
                )  # fmt: skip
            total += number
    return total


@compiled
def sort_into_buckets(
    scores: Singles, start: int, choice: _Choice, room: Ints, first: Ints
) -> None:
    """Put the boxes of a class that count into `room`, bucket by bucket, high scores first."""
    size = 0
    low = 1e39
    high = -1e39
    for box in range(choice.boxes):
        score = float(scores[start + box])
        if choice.bounded == 0 or score > choice.score:
            room[choice.boxes + size] = box
            if score < low:
                low = score
            if score > high:
                high = score
            size += 1
    scale = 0.0
    if high > low and high - low < 1e38:
        scale = _BUCKETS / (high - low)
    for bucket in range(_BUCKETS + 1):
        first[bucket] = 0
    for place in range(size):
        first[bucket_of(scores, start + room[choice.boxes + place], high, scale) + 1] += 1
    for bucket in range(_BUCKETS):
        first[bucket + 1] += first[bucket]
    for place in range(size - 1, -1, -1):
        box = room[choice.boxes + place]
        bucket = bucket_of(scores, start + box, high, scale) + 1
        first[bucket] -= 1
        room[first[bucket]] = box
    for bucket in range(_BUCKETS):
        first[bucket] = first[bucket + 1]
    first[_BUCKETS] = size


@compiled
def bucket_of(scores: Singles, place: int, high: float, scale: float) -> int:
    """The bucket of a score, 0 for the highest; what is not a number is among the lowest."""
    below = (high - float(scores[place])) * scale
    if below < _BUCKETS - 1:
        return int(max(0.0, below))
    return _BUCKETS - 1


@compiled
def choose(
    boxes: Boxes,
    scores: Singles,
    choice: _Choice,
    heap: Ints,
    kept: Ints,
    start: int,
    image: int,
    kind: int,
    total: int,
    number: int,
    begin: int,
    end: int,
) -> int:
    """How many boxes of a class remain once those of a bucket, from `begin` to `end` of `heap`,
    were looked at, the best first; `number` did before."""
    size = end - begin
    for place in range(size // 2 - 1, -1, -1):
        sink(heap, begin, scores, start, place, size)
    while size > 0 and number < choice.most:
        best = heap[begin]
        size -= 1
        heap[begin] = heap[begin + size]
        sink(heap, begin, scores, start, 0, size)
        base = image * choice.boxes
        covered = False
        for other in range(total, total + number):
            if overlaps(boxes, base + best, base + kept[3 * other + 2], choice.overlap) == 1:
                covered = True
                break
        if not covered:
            kept[3 * (total + number)] = image
            kept[3 * (total + number) + 1] = kind
            kept[3 * (total + number) + 2] = best
            number += 1
    return number


@compiled
def sink(heap: Ints, begin: int, scores: Singles, start: int, place: int, size: int) -> None:
    """Let a box sink to where none below it comes before it."""
    box = heap[begin + place]
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size:
            below += before(scores, start, heap[begin + below + 1], heap[begin + below])
        if before(scores, start, heap[begin + below], box) == 0:
            break
        heap[begin + place] = heap[begin + below]
        place = below
    heap[begin + place] = box


@compiled
def before(scores: Singles, start: int, one: int, two: int) -> int:
    """Whether a box has the higher score, or the same and the lower number."""
    if scores[start + one] > scores[start + two]:
        return 1
    if scores[start + one] == scores[start + two] and one < two:
        return 1
    return 0


@compiled
def overlaps(boxes: Boxes, one: int, two: int, limit: float) -> int:
    """Whether two boxes share more than `limit` of what they cover together."""
    left = max(boxes.ends[4 * one], boxes.ends[4 * two])
    right = min(boxes.ends[4 * one + 2], boxes.ends[4 * two + 2])
    if right <= left:
        return 0
    low = max(boxes.ends[4 * one + 1], boxes.ends[4 * two + 1])
    high = min(boxes.ends[4 * one + 3], boxes.ends[4 * two + 3])
    if high <= low:
        return 0
    shared = (right - left) * (high - low)
    together = boxes.areas[one] + boxes.areas[two] - shared
    if shared <= 0 or boxes.areas[one] <= 0 or boxes.areas[two] <= 0 or together <= 0:
        return 0
    return int(shared / together > limit)
