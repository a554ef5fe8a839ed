"""StableHLO as a format of model files: by their names; the importer is loaded for such a file."""

from pathlib import Path

from tilesmith.compiler.driver.front_end import FrontEndModel, ModelFormat, formats


@formats.register("stablehlo")
class StableHloFormat(ModelFormat):
    """MLIR text, bytecode and portable artifacts."""

    name = "StableHLO"
    suffixes = (".mlir", ".mlirbc", ".stablehlo")

    def model(self, path: Path) -> FrontEndModel:
        from tilesmith.capabilities.stablehlo.importer import model_of

        return model_of(path)

    def input_names(self, path: Path) -> list[str]:
        from tilesmith.capabilities.stablehlo.importer import input_names

        return input_names(path)
