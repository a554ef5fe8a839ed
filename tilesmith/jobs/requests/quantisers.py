"""Quantisers: what makes a model of float32 one of bytes, where the precision int8 is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilesmith.search_space.support.extensions import absent
from tilesmith.search_space.support.registry import Registry

if TYPE_CHECKING:
    from tilesmith.jobs.subjects.calibration_data import Data
    from tilesmith.jobs.subjects.subject import Model

    Shapes = Mapping[str, tuple[int | tuple[int, int], ...]]


class Quantiser(ABC):
    """Makes quantised models."""

    @abstractmethod
    def is_quantised(self, model: Model) -> bool:
        """Whether a model is one of bytes already.

        Raises:
            ModelError: it cannot be read, or is none of ONNX.
        """

    @abstractmethod
    def quantised(self, model: Model, data: Data, shapes: Shapes) -> Model:
        """A model of float32 as one of bytes, for nobody but our own kernels.

        Args:
            data: to calibrate with.
            shapes: of inputs by name, or sizes of symbolic dimensions by theirs.

        Raises:
            ModelError: the model cannot be read, or has nothing to quantise.
            InputError: the data are not of this model.
        """


quantisers: Registry[type[Quantiser]] = Registry("quantiser", "", room="quantiser")


def quantiser() -> Quantiser:
    """The one that is installed; `DependencyError` if there is none."""
    for name in quantisers:
        return quantisers[name]()
    raise absent("quantisation", "the precision int8")
