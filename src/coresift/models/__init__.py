"""Models: each turns labelled points into a posterior."""

from coresift.models.base import LastLayerPosterior, Posterior
from coresift.models.linear import BayesianLinearRegression, LinearPosterior, NormalInverseGammaPosterior
from coresift.models.probit import BayesianProbitRegression, ProbitPosterior
from coresift.models.samples import ClassSamples, FunctionPosterior, GaussianSamples

__all__ = [
    "BayesianLinearRegression",
    "BayesianProbitRegression",
    "ClassSamples",
    "FunctionPosterior",
    "GaussianSamples",
    "LastLayerPosterior",
    "LinearPosterior",
    "NormalInverseGammaPosterior",
    "Posterior",
    "ProbitPosterior",
]
