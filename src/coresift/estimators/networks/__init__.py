"""Networks, and how many of them are trained as one computation."""

from coresift.estimators.networks.images import Augment
from coresift.estimators.networks.labelled import LabelledStack
from coresift.estimators.networks.mlp import MLP
from coresift.estimators.networks.resnet import ResNet18
from coresift.estimators.networks.stack import Stack
from coresift.estimators.networks.trainer import Objective, Trainer

__all__ = ["MLP", "Augment", "LabelledStack", "Objective", "ResNet18", "Stack", "Trainer"]
