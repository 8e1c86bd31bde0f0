"""A scenario as ``fedamp.load`` returns it: it shows how its records are partitioned."""

from typing import TYPE_CHECKING

from fedamp.errors import needs_extras
from fedamp.federation import scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PUBLIC = ("diabetes", "digits", "fashion-mnist", "mnist", "segments", "shakespeare", "synthetic")


class Scenario(scenario.Scenario):
    """A scenario with a picture of its partition."""

    @classmethod
    def of(cls, loaded: scenario.Scenario) -> "Scenario":
        """The same scenario."""
        return loaded if isinstance(loaded, Scenario) else cls.model_construct(loaded.model_fields_set, **dict(loaded))

    def plot_partition(self, clients: int = 30) -> "Figure":
        """Records of every label that the first clients hold; it says so where they are private.

        InputError: the records are not there.
        """
        from fedamp.federation.losses import records_of

        with needs_extras():
            from fedamp.report.pictures import partition_picture

        is_public = self.data.name in PUBLIC and not getattr(self.data, "path", None)
        return partition_picture(records_of(self).label_counts(clients), self.name, is_public)
