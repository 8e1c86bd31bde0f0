"""A home of its own for each test: there fedamp notes which population is where."""

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("FEDAMP_HOME", str(folder))
    return folder
