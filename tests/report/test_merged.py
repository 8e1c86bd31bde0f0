"""Folders of merged models are read whole or refused in one line."""

import json
import shutil

import pytest

from fedamp.errors import RunFolderError
from fedamp.runs.merged import read_merged

DAMAGES = {
    "another epsilon": ("certificate.json", lambda content: content | {"epsilon": {"lower": 0.0, "upper": 0.1}}),
    "another format": ("certificate.json", lambda content: content | {"format": "fedamp merge certificate 9"}),
    "fewer weights": ("certificate.json", lambda content: content | {"weights": content["weights"][1:]}),
    "no accuracy": ("summary.json", lambda content: content | {"final": {}}),
    "no text": ("certificate.json", None),
    "no summary": ("summary.json", None),
}


def test_damaged_folders_are_refused_in_one_line(merged, tmp_path_factory, subtests):
    for name in DAMAGES:
        with subtests.test(name):
            folder = tmp_path_factory.mktemp("damaged") / "run"
            shutil.copytree(merged, folder)
            file, change = DAMAGES[name]
            text = (folder / file).read_text()
            (folder / file).write_text(json.dumps(change(json.loads(text))) if change else "{")
            with pytest.raises(RunFolderError) as refused:
                read_merged(folder)
            assert str(folder) in str(refused.value)
            assert len(str(refused.value).splitlines()) == 1
