"""The values that travel between a project's ledger, its files and the people who label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
class Labelled:
    """An item's label as it stands.

    Attributes
    ----------
    position : the item's row in the pool.
    label : the number or the class, as text.
    who, at : who gave it and when, as far as is known.
    round : the latest round that asked for it; 0 where nobody did.
    first : whether it was there when the project began.
    """

    position: int
    label: str
    who: str | None
    at: str
    round: int
    first: bool


@dataclass(frozen=True)
class Chosen:
    """One item of a batch.

    Attributes
    ----------
    position : its row in the pool.
    id : what people know it by.
    rank : its number in the batch, from 1.
    weight : the selector's own weight w_n, see `Batch.weights`; ``None`` where the strategy gives none.
    nearest : about how many items of the pool are nearer to it than to the rest of the batch, by features.
    """

    position: int
    id: str
    rank: int
    weight: float | None = None
    nearest: float | None = None


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
    residuals : what was left to explain after each step of the selector, see `Batch.residuals`.
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
    residuals: tuple[float, ...] | None = None


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


@dataclass(frozen=True)
class PlacedItem:
    """An item of the pool at its place on the map.

    Attributes
    ----------
    description : column -> text; under ``image`` the path of a file.
    rank, weight : of an item of the batch.
    stands_for : ids of the pool items nearest to it, for which it stands.
    share : of the pool, for which it stands.
    predicted : the label that the model expected when the item was chosen, and the probability of a class.
    """

    id: str
    x: float
    y: float
    state: State
    description: Mapping[str, str] = field(default_factory=dict)
    rank: int | None = None
    weight: float | None = None
    stands_for: tuple[str, ...] = ()
    share: float | None = None
    predicted: tuple[str, float | None] | None = None


@dataclass(frozen=True)
class ProjectReport:
    """All that the page tells, as plain values.

    Attributes
    ----------
    curve : the cross-validated error of each round, called `error_name`.
    fitted : the learning curve with its interval; it may reach beyond the last round.
    random : what random labels would have given.
    answered : number of a round -> how many of its batch have an answer.
    worth : sentences on what the batch is worth, when to stop, and what to keep in mind.
    classes, values : the labels so far: of a classification label -> count, of a regression the numbers.
    map, map_about : a sample of the pool and the whole batch, and how their places were found.
    settings : name -> value, shown at the end.
    withdrawn : number of a round -> how many of its batch were opened again, or excluded, without an answer.
    """

    name: str
    task: Task
    target: str
    counts: Mapping[State, int]
    rounds: Sequence[Round] = ()
    answered: Mapping[int, int] = field(default_factory=dict)
    curve: Sequence[CurvePoint] = ()
    fitted: Sequence[CurvePoint] = ()
    random: Sequence[CurvePoint] = ()
    error_name: str = "error"
    worth: Sequence[str] = ()
    classes: Mapping[str, int] = field(default_factory=dict)
    values: Sequence[float] = ()
    map: Sequence[PlacedItem] = ()
    map_about: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    withdrawn: Mapping[int, int] = field(default_factory=dict)

    @property
    def standing(self) -> list[Round]:
        """The rounds but those whose whole batch was withdrawn."""
        return [each for each in self.rounds if self.withdrawn.get(each.number, 0) < max(1, len(each.batch))]
