"""Posteriors: what a model believes, seen through samples and predictions."""

from coresift.posteriors.base import LastLayerPosterior, Posterior
from coresift.posteriors.gaussian_process import (
    GaussianProcessPosterior,
    exact_posterior,
    inducing_posterior,
)
from coresift.posteriors.kernels import Matern52
from coresift.posteriors.linear import BayesianLinearRegression, LinearPosterior, NormalInverseGammaPosterior
from coresift.posteriors.members import members_posterior
from coresift.posteriors.network import NetworkPosterior
from coresift.posteriors.nystrom import CovarianceVectors, GaussianProcessOnPool, covariance_vectors
from coresift.posteriors.probit import BayesianProbitRegression, ProbitPosterior
from coresift.posteriors.samples import ClassSamples, FunctionPosterior, GaussianSamples, SampledPredictions
from coresift.posteriors.softmax import SoftmaxPosterior

__all__ = [
    "BayesianLinearRegression",
    "BayesianProbitRegression",
    "ClassSamples",
    "CovarianceVectors",
    "FunctionPosterior",
    "GaussianProcessOnPool",
    "GaussianProcessPosterior",
    "GaussianSamples",
    "LastLayerPosterior",
    "LinearPosterior",
    "Matern52",
    "NetworkPosterior",
    "NormalInverseGammaPosterior",
    "Posterior",
    "ProbitPosterior",
    "SampledPredictions",
    "SoftmaxPosterior",
    "covariance_vectors",
    "exact_posterior",
    "inducing_posterior",
    "members_posterior",
]
