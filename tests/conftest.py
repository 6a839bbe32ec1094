"""Tests of optional extras are skipped, with a reason, where the extra is not installed."""

import importlib.util

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("kmedoids") is None:
        missing = pytest.mark.skip(reason="needs the kmedoids package")
        for item in items:
            if "medoids" in item.name.lower():
                item.add_marker(missing)
