"""Bring your own trained PyTorch classifier, and pick 20 images of a pool to label next.

Usage: python examples/own_classifier.py FOLDER
"""

import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import coresift
from coresift.estimators import laplace_posterior

folder = Path(sys.argv[1])
images, digits = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
labelled, digits, pool = images[:200], torch.tensor(digits[:200]), images[200:]

# Stands for a network trained elsewhere: any nn.Module that ends in a linear layer will do.
torch.manual_seed(0)
network = nn.Sequential()
network.add_module("body", nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()))
network.add_module("pool", nn.Sequential(nn.MaxPool2d(2), nn.Flatten()))
network.add_module("last", nn.Linear(64, 10))
optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(50):
    for rows in torch.randperm(len(labelled)).split(32):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(labelled[rows]), digits[rows]).backward()
        optimiser.step()

# One line to a posterior: the module, the name of its last layer, and what it was trained on.
posterior = laplace_posterior(network, "last", labelled, digits)
batch = coresift.select(pool, posterior=posterior, budget=20)

guesses = posterior.predictive(pool[batch.index]).probs.max(1)
for image, guess, sure in zip(batch.index, guesses.indices, guesses.values, strict=True):
    print(f"image {image:4d}: perhaps a {guess}, with probability {sure:.2f}")

grid = np.block([[np.pad(pool[n, 0], 1) for n in row] for row in batch.index.reshape(4, 5)])
folder.mkdir(parents=True, exist_ok=True)
matplotlib.image.imsave(folder / "chosen.png", np.kron(grid, np.ones((8, 8))), cmap="gray")
print("the images:", folder / "chosen.png")
