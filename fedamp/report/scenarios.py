"""Give a scenario, as ``fedamp.load`` returns it, a picture of how its records are partitioned.

:class:`fedamp.federation.scenario.Scenario` itself knows no pictures.
"""

from typing import TYPE_CHECKING

from fedamp.errors import needs_extras
from fedamp.federation import scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CARD = 10  # lines
PUBLIC = ("diabetes", "digits", "fashion-mnist", "mnist", "segments", "shakespeare", "synthetic")


class LoadedScenario(scenario.Scenario):
    """A scenario with a picture of its partition."""

    @classmethod
    def of(cls, loaded: scenario.Scenario) -> "LoadedScenario":
        """Return the same scenario as an object of this class."""
        if isinstance(loaded, LoadedScenario):
            return loaded
        return cls.model_construct(loaded.model_fields_set, **dict(loaded))

    def _repr_html_(self) -> str:
        """Return a card of at most ten lines for a notebook: what differs from the defaults."""
        from rich.console import Group

        from fedamp.report.tables import as_html, facts
        from fedamp.report.words import given, setting

        changed = self.model_dump(mode="json", exclude_defaults=True)
        facts_ = {setting(key): given(value) for key, value in changed.items() if key not in ("name", "description")}
        shown = dict(list(facts_.items())[: CARD - 1])
        return as_html(Group(facts(self.name, shown), "print(scenario.to_yaml()) shows every key"))

    def plot_partition(self, clients: int = 30) -> "Figure":
        """Draw the records of every label that the first clients hold; the picture says so where they are private.

        Args:
            clients: the most that are drawn.

        Raises:
            InputError: the records are not there, or only the code of a custom loss knows what their labels are.
        """
        from fedamp.federation.losses import shown_records

        with needs_extras():
            from fedamp.report.pictures import partition_picture

        is_public = self.data.name in PUBLIC and not getattr(self.data, "path", None)
        return partition_picture(shown_records(self).label_counts(clients), self.name, is_public)
