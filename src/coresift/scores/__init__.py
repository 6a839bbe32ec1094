"""Scores: each says what a pool point is worth on its own."""

from coresift.scores.bald import bald
from coresift.scores.base import Score, score_pool
from coresift.scores.entropy import entropy
from coresift.scores.simple import acs_norm, margin, variance

__all__ = ["Score", "acs_norm", "bald", "entropy", "margin", "score_pool", "variance"]
