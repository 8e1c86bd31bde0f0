"""Turn texts of people into records of tokens.

Texts come from files of :mod:`fedamp.data.tabular`. A token is a character, or one of a tokenizer. The tokenizer's file
must not be made from these people's texts, because nothing charges for that. Models take tokens where
``model.vocabulary`` is given.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedamp.base.reading import read_regular
from fedamp.base.section import Count
from fedamp.data.form import NOT_COUNTED
from fedamp.data.huggingface import numbers
from fedamp.data.partition import AnyPartition, NaturalPartition
from fedamp.data.places import folder_of
from fedamp.data.stored import BenchmarkData, FolderData
from fedamp.data.table import Table, check_bytes, require
from fedamp.data.tabular import Files
from fedamp.errors import DataError, one_line

_FIRST, _LAST = 32, 126  # the printable characters of ASCII; all others, and the end of a text, are one token
CHARACTERS = _LAST - _FIRST + 2


class Texts(FolderData):
    """Base of the sections of texts."""

    text: str = Field("text", description="column of the texts")
    label: str | None = Field(None, description="column of one class a text; default: the label is the next token")
    length: Count = Field(64, description="tokens of a record")
    tokenizer: str | None = Field(
        None, description="file of Hugging Face's tokenizers, in data.path or absolute; default: characters (ASCII)"
    )

    def split(self, folder: Path, split: str) -> Table | None:
        """Read the texts of a split, and cut each into records; the owner of a text owns its records.

        With a column of classes, a text is one record, its first ``length`` tokens. Else a text gives as many records
        as it needs, and the label of a token is the next one. A cell that is no text makes a wrong record, not an
        error.
        """
        files = Files.of(folder, split, ("json", "csv", "parquet"), self.max_bytes)
        if files is None:
            return None
        source = files.source
        require(self.text, files.names, "data.text", source)
        tokens_of, _, pad = self._tokenizer(folder)
        texts = files.spelled(self.text).tolist()
        if not all(text is None or isinstance(text, str) for text in texts):  # a fact of the column's type
            raise DataError(f"{source}: column {self.text!r} must hold texts")
        wrong = np.array([text is None for text in texts], bool)
        pieces = [tokens_of(text or "") for text in texts]
        records = [max(1, -(-(len(piece) - 1) // self.length)) if self.label is None else 1 for piece in pieces]
        counts = np.array(records, np.int64)
        check_bytes(source, int(counts.sum()) * self.length * 2 * np.dtype(np.int32).itemsize, self.max_bytes)
        labels: NDArray[Any]
        if self.label is not None:
            require(self.label, files.names, "data.label", source)
            inputs = np.full((len(pieces), self.length), pad, np.int32)
            for beginning, piece in zip(inputs, pieces, strict=True):
                beginning[: len(piece)] = piece[: self.length]
            stored = (
                files.spelled(self.label) if self.words else numbers(files.rows([self.label]), [self.label], source)
            )
            nothing: Any = None if self.words else np.nan
            labels = np.where(wrong, nothing, stored)
        else:
            inputs = np.zeros((counts.sum(), self.length), np.int32)
            labels = np.full_like(inputs, NOT_COUNTED)
            for start, count, piece in zip(np.cumsum(counts) - counts, counts, pieces, strict=True):
                for array, part in ((inputs, piece[:-1]), (labels, piece[1:])):
                    array[start : start + count].reshape(-1)[: len(part)] = part
            labels[np.repeat(wrong, counts)] = -1  # no token
        ends = np.cumsum(counts)

        def column(name: str) -> NDArray[Any]:
            return np.repeat(files.spelled(name), counts)

        def place(record: int) -> str:
            return files.place(int(np.searchsorted(ends, record, "right")))

        columns = {name: partial(column, name) for name in files.names}
        return Table(source, inputs, labels, columns, place=place, features=(self.text,), label=self.label or self.text)

    def input_shape(self) -> tuple[int, ...] | None:
        """Return the length of a record."""
        return (self.length,)

    def known_classes(self, folder: Path) -> int | None:
        """Return the tokenizer's vocabulary where labels are tokens; else as other data."""
        vocabulary = self._tokenizer(self.place(folder))[1] if self.label is None else None
        return vocabulary or super().known_classes(folder)

    def _tokenizer(self, folder: Path) -> tuple[Callable[[str], Any], int, int]:
        """Return what turns a text into tokens.

        Args:
            folder: where a relative path of the tokenizer starts.

        Returns:
            The function; the number of tokens there are; and the token for places beyond a text's end.

        Raises:
            DataError: the file cannot be read.
        """
        if self.tokenizer is None:
            return _code_points, CHARACTERS, CHARACTERS - 1
        file = folder / self.tokenizer
        try:
            return _tokenizer_in(read_regular(file).decode())
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"data.tokenizer: {file} cannot be read ({one_line(error)})") from None


class TextData(Texts):
    """Files ``train*.json`` (a line a text), csv or parquet: texts, and a column that names each text's author.

    A text is cut into records of ``length`` tokens, and the token after each; the last one is filled up with places
    that do not count. For token-cross-entropy and ``model.vocabulary``: 96, or that of the tokenizer.
    """

    name: Literal["text"]


class DescriptionsData(BenchmarkData, Texts):
    """One-line descriptions of Debian's packages, by maintainer: 1,900 people and teams to train, others to test.

    From the package lists of Debian (each description under its package's own licence), by ``make data``. ``sections``
    has those of the twenty commonest sections, with the package's section: 1,500 maintainers to train, others to test.
    """

    name: Literal["descriptions", "sections"]
    path: str | None = Field(None, description="folder of train.json and test.json; default: that of make data")  # type: ignore[assignment]
    partition: AnyPartition = NaturalPartition(scheme="natural", column="author")

    def place(self, folder: Path) -> Path:
        """Return ``path``, or the folder of ``make data``."""
        if self.path is not None:
            return super().place(folder)
        if (found := folder_of(self.name)) is None:
            raise DataError(f"data.name {self.name}: not on this machine; expected: make data, or data.path")
        return found


@lru_cache(maxsize=1)  # asked for with each split, and for the size of the vocabulary
def _tokenizer_in(text: str) -> tuple[Callable[[str], Any], int, int]:
    """Load a tokenizer from the text of its file, without its padding."""
    from tokenizers import Tokenizer

    found = Tokenizer.from_str(text)
    pad = (found.padding or {"pad_id": 0})["pad_id"]
    found.no_padding()
    return lambda text: found.encode(text).ids, found.get_vocab_size(), pad


def _code_points(text: str) -> NDArray[np.int32]:
    """Turn a text into the numbers of its printable ASCII characters; all others, and its end, are one token."""
    codes = np.frombuffer((text + "\0").encode("utf-32-le", "surrogatepass"), np.int32)
    return np.where((codes >= _FIRST) & (codes <= _LAST), codes - _FIRST, CHARACTERS - 1)
