"""Copies of tabular files, features, and downloads stay in the tests' own folders."""

import datasets
import pytest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        patch.setenv("FEDAMP_CACHE", str(folder))
        yield
