"""Models: each turns labelled points into a posterior."""

from coresift.models.base import LastLayerPosterior, Posterior
from coresift.models.dropout import DropoutClassifier, DropoutPosterior, DropoutRegressor
from coresift.models.ensemble import EnsembleClassifier, EnsembleRegressor
from coresift.models.laplace import LaplaceClassifier, LaplaceRegressor, laplace_posterior
from coresift.models.linear import BayesianLinearRegression, LinearPosterior, NormalInverseGammaPosterior
from coresift.models.network import NetworkPosterior
from coresift.models.neural_classifier import NeuralLinearClassifier
from coresift.models.neural_linear import NeuralLinearRegressor
from coresift.models.probit import BayesianProbitRegression, ProbitPosterior
from coresift.models.samples import ClassSamples, FunctionPosterior, GaussianSamples, SampledPredictions
from coresift.models.softmax import SoftmaxPosterior

__all__ = [
    "BayesianLinearRegression",
    "BayesianProbitRegression",
    "ClassSamples",
    "DropoutClassifier",
    "DropoutPosterior",
    "DropoutRegressor",
    "EnsembleClassifier",
    "EnsembleRegressor",
    "FunctionPosterior",
    "GaussianSamples",
    "LaplaceClassifier",
    "LaplaceRegressor",
    "LastLayerPosterior",
    "LinearPosterior",
    "NetworkPosterior",
    "NeuralLinearClassifier",
    "NeuralLinearRegressor",
    "NormalInverseGammaPosterior",
    "Posterior",
    "ProbitPosterior",
    "SampledPredictions",
    "SoftmaxPosterior",
    "laplace_posterior",
]
