"""Estimators: scikit-learn regressors and classifiers that carry a posterior."""

from coresift.estimators.auto import AutoClassifier, AutoRegressor
from coresift.estimators.bagged import BaggedClassifier, BaggedRegressor
from coresift.estimators.dropout import DropoutClassifier, DropoutPosterior, DropoutRegressor
from coresift.estimators.ensemble import EnsembleClassifier, EnsembleRegressor
from coresift.estimators.gaussian_process import GaussianProcessRegressor
from coresift.estimators.laplace import LaplaceClassifier, LaplaceRegressor, laplace_posterior
from coresift.estimators.linear import BayesianLinearRegressor
from coresift.estimators.neural_classifier import NeuralLinearClassifier
from coresift.estimators.neural_linear import NeuralLinearRegressor

__all__ = [
    "AutoClassifier",
    "AutoRegressor",
    "BaggedClassifier",
    "BaggedRegressor",
    "BayesianLinearRegressor",
    "DropoutClassifier",
    "DropoutPosterior",
    "DropoutRegressor",
    "EnsembleClassifier",
    "EnsembleRegressor",
    "GaussianProcessRegressor",
    "LaplaceClassifier",
    "LaplaceRegressor",
    "NeuralLinearClassifier",
    "NeuralLinearRegressor",
    "laplace_posterior",
]
