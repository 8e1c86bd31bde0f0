"""List all data sets that a scenario can name: a further one is one class in one file, and a line here.

``name`` chooses the class. :mod:`fedamp.federation.scenario` and the task of a node take this union; the classes are in
the other modules of this package.
"""

from typing import Annotated

from pydantic import Field

from fedamp.data.builtin import DiabetesData, DigitsData, SegmentsData, ShakespeareData
from fedamp.data.dataset import ExternalData
from fedamp.data.huggingface import HuggingFaceData, TabularData
from fedamp.data.npz import GivenData, NpzData
from fedamp.data.published import IdxData, InstEvalData, KnownImages
from fedamp.data.synthetic import SyntheticData
from fedamp.data.texts import DescriptionsData, TextData

Data = Annotated[
    DiabetesData
    | DigitsData
    | SegmentsData
    | ShakespeareData
    | SyntheticData
    | NpzData
    | TabularData
    | TextData
    | DescriptionsData
    | IdxData
    | KnownImages
    | InstEvalData
    | HuggingFaceData
    | GivenData
    | ExternalData,
    Field(discriminator="name"),
]
