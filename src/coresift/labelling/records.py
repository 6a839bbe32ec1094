"""The values that travel between a project's ledger, its files and the people who label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Task = Literal["regression", "classification"]
State = Literal["unlabelled", "pending", "labelled", "skipped", "excluded"]

# Beyond it squares overflow; whoever writes such a number means "none" or has made a mistake.
LARGEST = 1e100


@dataclass(frozen=True)
class Answer:
    """What somebody says about one item.

    Attributes
    ----------
    id : of the item.
    label : the number or the class, as text; ``None`` where the item was skipped.
    who : who says so, where that is known.
    at : when, in ISO 8601 with a time zone, where that is known; else it is the time it came in.
    """

    id: str
    label: str | None
    who: str | None = None
    at: str | None = None


@dataclass(frozen=True)
class Chosen:
    """One item of a batch.

    Attributes
    ----------
    position : its row in the pool.
    id : what people know it by.
    rank : its place in the batch, from 1.
    weight : how much of the pool it stands for, where the strategy says so.
    """

    position: int
    id: str
    rank: int
    weight: float | None = None


@dataclass(frozen=True)
class Round:
    """A batch that was chosen, and how.

    Attributes
    ----------
    number : from 1.
    at : when, in ISO 8601.
    strategy, seed, model : how it was chosen.
    data : fingerprint of the pool and of the labels that the model was fitted to.
    asked : what was asked for: batch size, budget, and what else makes two requests the same or not.
    labels : how many labels there were.
    seconds : what it took.
    notes : what else is worth keeping, such as the error expected from cross-validation.
    batch : the items, by rank.
    """

    number: int
    at: str
    strategy: str
    seed: int
    model: str
    data: str
    asked: Mapping[str, Any]
    labels: int
    seconds: float
    notes: Mapping[str, Any] = field(default_factory=dict)
    batch: tuple[Chosen, ...] = ()


@dataclass(frozen=True)
class CurvePoint:
    """A point of a learning curve.

    Attributes
    ----------
    labels : how many labels a model was trained on.
    error : root mean squared error (RMSE), or error rate.
    low, high : a rough interval.
    """

    labels: int
    error: float
    low: float
    high: float
