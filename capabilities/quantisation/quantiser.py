"""Registers quantisation by calibration data as what the precision int8 asks for."""

from typing import TYPE_CHECKING

from tilesmith.jobs.requests.integers import Quantiser, quantisers

if TYPE_CHECKING:
    from tilesmith.jobs.requests.integers import Shapes
    from tilesmith.jobs.subjects.calibration_data import Data
    from tilesmith.jobs.subjects.subject import Model


@quantisers.register("calibration")
class CalibratingQuantiser(Quantiser):
    """Scales from data; sums of residuals stay unrounded, for no other runtime reads the model
    (docs/decisions/0076-sums-that-stay-unrounded.md).
    """

    def is_quantised(self, model: "Model") -> bool:
        from tilesmith.capabilities.quantisation.jobs import file_of
        from tilesmith.capabilities.quantisation.preparation.float_model import quantised_by

        return quantised_by(file_of(model).proto) is not None

    def quantised(self, model: "Model", data: "Data", shapes: "Shapes") -> "Model":
        from tilesmith.capabilities.quantisation.jobs import QuantiseRequest, quantised_model

        asked = QuantiseRequest(model, data, samples=0, shapes=shapes, fuse_residuals=True)
        return quantised_model(asked).model
