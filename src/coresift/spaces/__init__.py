"""Spaces: each turns a posterior and a pool into vectors, seen through their inner products."""

from coresift.spaces.base import GramSpace, KernelSpace, Problem, Space, default_num_samples
from coresift.spaces.closed_forms import ProbitFisherSpace
from coresift.spaces.covariance import PredictiveCovariance
from coresift.spaces.features import FeatureSpace, feature_space
from coresift.spaces.gradient import badge, exact_fisher_space, fisher_space
from coresift.spaces.likelihood import (
    Likelihood,
    exact_likelihood_space,
    likelihood_space,
    sampled_likelihood_space,
)
from coresift.spaces.outer import OuterKernel, OuterSpace
from coresift.spaces.predictive import Predictive, exact_predictive_rows, predictive_space
from coresift.spaces.vectors import VectorSpace

__all__ = [
    "FeatureSpace",
    "GramSpace",
    "KernelSpace",
    "Likelihood",
    "OuterKernel",
    "OuterSpace",
    "Predictive",
    "PredictiveCovariance",
    "ProbitFisherSpace",
    "Problem",
    "Space",
    "VectorSpace",
    "badge",
    "default_num_samples",
    "exact_fisher_space",
    "exact_likelihood_space",
    "exact_predictive_rows",
    "feature_space",
    "fisher_space",
    "likelihood_space",
    "predictive_space",
    "sampled_likelihood_space",
]
