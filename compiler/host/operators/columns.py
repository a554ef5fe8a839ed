"""Col2Im on the host, in numpy: `onnx.reference` adds number by number."""

import itertools

import numpy as np

from tilesmith.compiler.host.operators.call import OperatorCall, Results, host_operator
from tilesmith.compiler.host.operators.windows import last_axes
from tilesmith.search_space.support.errors import JobError


@host_operator("Col2Im")
def col2im(call: OperatorCall) -> Results:
    """Columns (n, c places, blocks) added up where in the images (n, c, ...) they belong (18)."""
    x, image, block = call.inputs
    rank, places = len(image), int(np.prod(block))
    ones = [1] * rank
    strides = call.attributes.get("strides") or ones
    dilations = call.attributes.get("dilations") or ones
    pads = call.attributes.get("pads") or [0] * (2 * rank)
    wide = [int(image[a]) + pads[a] + pads[rank + a] for a in range(rank)]
    counts = [(wide[a] - (block[a] - 1) * dilations[a] - 1) // strides[a] + 1 for a in range(rank)]
    if x.ndim != 3 or x.shape[1] % places or x.shape[2] != int(np.prod(counts)):
        raise JobError(
            f"columns of shape {x.shape} do not fit blocks of {block.tolist()} in images of "
            f"{image.tolist()}"
        )
    columns = x.reshape(x.shape[0], -1, places, *counts)
    y = np.zeros((*columns.shape[:2], *wide), x.dtype)
    for number, tap in enumerate(itertools.product(*map(range, block))):
        at = tuple(
            slice(t * d, t * d + (count - 1) * s + 1, s)
            for t, d, count, s in zip(tap, dilations, counts, strides, strict=True)
        )
        y[last_axes(at)] += columns[:, :, number]
    inner = tuple(slice(pads[a], pads[a] + int(image[a])) for a in range(rank))
    return (np.ascontiguousarray(y[last_axes(inner)]),)
