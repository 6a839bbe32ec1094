"""Models: each turns labelled points into a posterior."""

from coresift.models.base import LastLayerPosterior, Posterior
from coresift.models.dropout import DropoutPosterior
from coresift.models.ensemble import EnsembleClassifier, EnsembleRegressor
from coresift.models.laplace import laplace_posterior
from coresift.models.linear import BayesianLinearRegression, LinearPosterior, NormalInverseGammaPosterior
from coresift.models.network import NetworkPosterior
from coresift.models.neural_classifier import NeuralLinearClassifier
from coresift.models.neural_linear import NeuralLinearRegressor
from coresift.models.probit import BayesianProbitRegression, ProbitPosterior
from coresift.models.samples import ClassSamples, FunctionPosterior, GaussianSamples
from coresift.models.softmax import SoftmaxPosterior

__all__ = [
    "BayesianLinearRegression",
    "BayesianProbitRegression",
    "ClassSamples",
    "DropoutPosterior",
    "EnsembleClassifier",
    "EnsembleRegressor",
    "FunctionPosterior",
    "GaussianSamples",
    "LastLayerPosterior",
    "LinearPosterior",
    "NetworkPosterior",
    "NeuralLinearClassifier",
    "NeuralLinearRegressor",
    "NormalInverseGammaPosterior",
    "Posterior",
    "ProbitPosterior",
    "SoftmaxPosterior",
    "laplace_posterior",
]
