"""Tests of optional extras are skipped, with a reason, where the extra is not installed."""

import importlib.util

import pytest
import torch

# Tests run side by side, one process a core: threads within each would only wait for one another.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("kmedoids") is None:
        missing = pytest.mark.skip(reason="needs the kmedoids package")
        for item in items:
            if "medoids" in item.name.lower():
                item.add_marker(missing)
