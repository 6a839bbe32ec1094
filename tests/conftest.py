"""Tests run side by side, one process a core: threads within each would only wait for one another."""

import torch

torch.set_num_threads(1)
