"""The values that travel between a project's ledger, its files and the people who label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Task = Literal["regression", "classification"]
State = Literal["unlabelled", "pending", "labelled", "skipped", "excluded"]
Prediction = tuple[str, float | None]  # a label, and the probability of a class

# Beyond it squares overflow; such a number means "none" or is a mistake.
LARGEST = 1e100


@dataclass(frozen=True)
class Answer:
    """What somebody says about one item."""

    id: str
    label: str | None  # the number or the class, as text; None if the item was skipped
    who: str | None = None  # who says so, if known
    # When it was given, in ISO 8601 with a time zone, if known; the ledger stores it as ``said_at``.
    # `Ledger.answers` gives the time at which the answer came in if this one is not known.
    at: str | None = None


@dataclass(frozen=True)
class Labelled:
    """The current label of an item, and who gave it and when, as far as is known."""

    position: int  # the item's row in the pool
    label: str  # the number or the class, as text
    who: str | None
    at: str  # when it was given or, if that is not known, when it came in
    round: int  # the latest round that asked for it; 0 if none did
    first: bool  # whether it was there when the project began


@dataclass(frozen=True)
class Chosen:
    """One item of a batch."""

    position: int  # the item's row in the pool
    id: str
    rank: int  # its number in the batch, from 1
    weight: float | None = None  # the selector's w_n, see `Batch.weights`, if the strategy gives any
    # About how many items of the pool are nearer to it than to the rest of the batch, by features.
    nearest: float | None = None


@dataclass(frozen=True)
class Round:
    """A batch that was chosen, and how."""

    number: int  # from 1
    at: str  # when it was chosen, in ISO 8601
    strategy: str
    seed: int
    model: str
    data: str  # a fingerprint of the pool and of the labels that the model was fitted to
    asked: Mapping[str, Any]  # the fields of the `Request`
    labels: int  # how many there were
    seconds: float
    notes: Mapping[str, Any] = field(default_factory=dict)  # further facts, such as the forecast
    batch: tuple[Chosen, ...] = ()  # by rank
    residuals: tuple[float, ...] | None = None  # of the selector's steps, see `Batch.residuals`


@dataclass(frozen=True)
class CurvePoint:
    """The RMSE or the error rate of a model trained on so many labels, with a rough interval."""

    labels: int
    error: float
    low: float
    high: float


@dataclass(frozen=True)
class PlacedItem:
    """An item of the pool, with its coordinates on the map; the fields from ``rank`` on are of a batch."""

    id: str
    x: float
    y: float
    state: State
    description: Mapping[str, str] = field(default_factory=dict)  # by column; "image" is the path of a file
    rank: int | None = None
    weight: float | None = None
    stands_for: tuple[str, ...] = ()  # ids of the pool items nearest to it, which it represents
    share: float | None = None  # the fraction of the pool that it represents
    predicted: Prediction | None = None  # when the item was chosen


@dataclass(frozen=True)
class ProjectReport:
    """The content of the report page, as plain values."""

    name: str
    task: Task
    target: str
    counts: Mapping[State, int]
    rounds: Sequence[Round] = ()
    answered: Mapping[int, int] = field(default_factory=dict)  # round -> items of its batch with an answer
    curve: Sequence[CurvePoint] = ()  # the cross-validated error of each round, called `error_name`
    fitted: Sequence[CurvePoint] = ()  # the learning curve, which may reach beyond the last round
    random: Sequence[CurvePoint] = ()  # the curve of random labels
    error_name: str = "error"
    worth: Sequence[str] = ()  # sentences that forecast what the batch brings
    classes: Mapping[str, int] = field(default_factory=dict)  # the labels of a classification, counted
    values: Sequence[float] = ()  # the labels of a regression
    map: Sequence[PlacedItem] = ()  # a sample of the pool and the whole batch
    map_about: str = ""  # how their coordinates were found
    settings: Mapping[str, str] = field(default_factory=dict)  # shown at the end
    withdrawn: Mapping[int, int] = field(default_factory=dict)  # round -> items withdrawn without an answer

    @property
    def standing(self) -> list[Round]:
        """The rounds except those whose whole batch was withdrawn."""
        return [made for made in self.rounds if self.withdrawn.get(made.number, 0) < max(1, len(made.batch))]
