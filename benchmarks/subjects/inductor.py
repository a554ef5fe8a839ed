"""PyTorch's compiler, Inductor, as one more runtime that a whole model is timed against.

It takes modules, not files of ONNX: so it runs those that `benchmarks/export_models.py` makes, with
the weights that the exported file has (both come from one seed). Inductor needs a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.export_models import MODELS
from tilesmith.jobs.measures.peers import Arrays, Contender
from tilesmith.search_space.support.errors import ModelError


def inductor(
    mode: str, model: Path, inputs: Arrays, threads: int, precision: str = "f32"
) -> Contender:
    """The module of an exported model, compiled whole.

    Args:
        mode: of `torch.compile`: "default" or "max-autotune".
        model: its stem is one of `MODELS`.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    make = MODELS.get(model.stem)
    module, _, names = make() if make else (torch.nn.Identity(), (), [])
    if set(names) != set(inputs):
        raise ModelError(f"Inductor has no module of '{model}': export_models.py did not make it")
    given = [torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in names]
    compiled = torch.compile(module.eval(), mode=mode, fullgraph=True, dynamic=False)
    last: list[torch.Tensor] = []

    @torch.inference_mode()
    def infer() -> None:
        result = compiled(*given)
        last[:] = [result] if isinstance(result, torch.Tensor) else result

    def outputs() -> Arrays:
        import onnx

        written = onnx.load(model, load_external_data=False).graph.output
        return {info.name: value.numpy() for info, value in zip(written, last, strict=True)}

    return Contender(f"inductor-{mode}", torch.__version__, infer, outputs)


INDUCTOR: dict[str, Callable[[Path, Arrays, int, str], Contender]] = {
    f"inductor-{mode}": partial(inductor, mode) for mode in ("default", "max-autotune")
}
"""What joins `PEERS`."""
