"""Selectors: each turns a space or a score into a batch."""

from coresift.selectors.bait import Bait
from coresift.selectors.base import Selection, Selector
from coresift.selectors.batch_bald import BatchBALD
from coresift.selectors.distance import LCMD, KCenter, KMeansPlusPlus
from coresift.selectors.exhaustive import Exhaustive
from coresift.selectors.frank_wolfe import FrankWolfe
from coresift.selectors.giga import GIGA
from coresift.selectors.herding import UncertaintyHerding
from coresift.selectors.information import best_weights, information
from coresift.selectors.kmedoids import KMedoids
from coresift.selectors.log_det import GreedyLogDet
from coresift.selectors.ranking import GumbelTopB, TopB, UniformRandom
from coresift.selectors.typiclust import TypiClust
from coresift.selectors.variance import VarianceReduction

__all__ = [
    "GIGA",
    "LCMD",
    "Bait",
    "BatchBALD",
    "Exhaustive",
    "FrankWolfe",
    "GreedyLogDet",
    "GumbelTopB",
    "KCenter",
    "KMeansPlusPlus",
    "KMedoids",
    "Selection",
    "Selector",
    "TopB",
    "TypiClust",
    "UncertaintyHerding",
    "UniformRandom",
    "VarianceReduction",
    "best_weights",
    "information",
]
