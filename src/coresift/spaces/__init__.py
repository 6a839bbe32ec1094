"""Spaces: each turns a posterior and a pool into vectors, seen through their inner products."""

from coresift.spaces.base import GramSpace, KernelSpace, Space
from coresift.spaces.features import FeatureSpace, feature_space
from coresift.spaces.fisher import fisher_space, last_layer_fisher_space
from coresift.spaces.gradient import badge_space
from coresift.spaces.likelihood import default_num_samples, likelihood_space, sampled_likelihood_space
from coresift.spaces.linear import linear_fisher_space, linear_likelihood_space
from coresift.spaces.outer import OuterKernel, OuterSpace
from coresift.spaces.predictive import predictive_space
from coresift.spaces.probit import ProbitFisherSpace
from coresift.spaces.vectors import VectorSpace

__all__ = [
    "FeatureSpace",
    "GramSpace",
    "KernelSpace",
    "OuterKernel",
    "OuterSpace",
    "ProbitFisherSpace",
    "Space",
    "VectorSpace",
    "badge_space",
    "default_num_samples",
    "feature_space",
    "fisher_space",
    "last_layer_fisher_space",
    "likelihood_space",
    "linear_fisher_space",
    "linear_likelihood_space",
    "predictive_space",
    "sampled_likelihood_space",
]
