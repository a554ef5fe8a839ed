"""Registers tuning on first use as what `tune="background"` asks for."""

from typing import TYPE_CHECKING

from tilesmith.jobs.background import BackgroundTuner, background_tuners

if TYPE_CHECKING:
    from tilesmith.jobs.background import M
    from tilesmith.jobs.requests.request import Resolved


@background_tuners.register("first_use")
class FirstUseTuner(BackgroundTuner):
    """A tuner's process of the lowest priority, one for all processes of this user."""

    def database(self) -> str:
        from tilesmith.capabilities.first_use.orders import orders_folder

        return str(orders_folder() / "tuning.db")

    def followed(self, executable: "M", asked: "Resolved", database: str) -> "M":
        from tilesmith.capabilities.first_use.following import follow

        return follow(executable, asked, database)
