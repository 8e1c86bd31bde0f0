"""Downloads stay in the tests' own folder."""

import datasets
import pytest


@pytest.fixture(scope="session", autouse=True)
def downloads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("downloads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        yield
