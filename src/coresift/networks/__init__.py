"""Networks, and how many of them are trained as one computation."""

from coresift.networks.images import Augment
from coresift.networks.mlp import MLP
from coresift.networks.resnet import ResNet18
from coresift.networks.stack import Stack
from coresift.networks.trainer import LabelledStack, Objective, Trainer

__all__ = ["MLP", "Augment", "LabelledStack", "Objective", "ResNet18", "Stack", "Trainer"]
