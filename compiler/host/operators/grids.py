"""AffineGrid on the host, in numpy: `onnx.reference` gives float32 whatever it is given."""

import numpy as np

from tilesmith.compiler.host.operators.call import Array, OperatorCall, Results, host_operator


@host_operator("AffineGrid")
def affine_grid(call: OperatorCall) -> Results:
    """grid[n, places, :] = theta[n] (place, 1), places from -1 to 1, the last axis first.

    theta: (N, 2, 3) or (N, 3, 4); `size`: (N, C, [D,] H, W). Places are the centres of pixels, or
    with `align_corners` run from corner to corner; the result is of theta's dtype.
    """
    theta, size = call.inputs
    extents = [int(extent) for extent in size[2:]]
    corners = bool(call.attributes.get("align_corners", 0))
    axes = [centres(extent, corners) for extent in extents]
    places = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(extents)], axis=-1)
    grid = np.einsum("...j,nij->n...i", places, theta.astype(np.float64))
    return (grid.astype(theta.dtype),)


def centres(extent: int, corners: bool) -> Array:
    """Centres of pixels along an axis from -1 to 1, or from corner to corner."""
    if corners:
        return np.linspace(-1, 1, extent)
    return (2 * np.arange(extent) + 1) / extent - 1
