"""What tests share."""

from collections.abc import Iterator

import pytest
import torch

# Tests run side by side, one process a core: threads within each would only wait for one another.
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray of this process's own: one that joined another's would be ended together with that."""
    ray = pytest.importorskip("ray", reason="needs the ray package")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address="local", num_cpus=2, **quiet)
        yield
        ray.shutdown()
