"""All data sets that a scenario can name: a further one is one class in one file, and a line here."""

from typing import Annotated

from pydantic import Field

from fedamp.data.builtin.shakespeare import ShakespeareData
from fedamp.data.builtin.tables import DiabetesData, DigitsData, SegmentsData
from fedamp.data.dataset import ExternalData
from fedamp.data.given import GivenData
from fedamp.data.huggingface import HuggingFaceData, TabularData
from fedamp.data.idx import IdxData, KnownImages
from fedamp.data.npz import NpzData
from fedamp.data.ratings import InstEvalData
from fedamp.data.synthetic import SyntheticData
from fedamp.data.text import DescriptionsData, TextData

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
