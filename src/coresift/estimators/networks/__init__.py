"""Networks, and how many of them are trained as one computation."""

from coresift.estimators.networks.extractors import MLP, Augment, ResNet18
from coresift.estimators.networks.labelled import LabelledStack
from coresift.estimators.networks.losses import Objective
from coresift.estimators.networks.stack import Stack
from coresift.estimators.networks.trainer import Trainer

__all__ = ["MLP", "Augment", "LabelledStack", "Objective", "ResNet18", "Stack", "Trainer"]
