"""The settings of a project, and the request for a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from coresift import limits
from coresift.errors import InputError
from coresift.labelling.pools import Reading
from coresift.labelling.records import Task
from coresift.strategies import DEFAULT, find_strategy


class NothingLeftError(InputError):
    """There is nothing left to choose."""

    exit_code = 4


@dataclass(frozen=True)
class Settings:
    """The settings that a project was created with."""

    reading: Reading
    kind: str  # of the pool: table, text, images or array
    task: Task
    target: str
    classes: tuple[str, ...] | None  # the labels that are allowed; None for any
    features: str  # what they are, in words
    fingerprint: str  # of the pool
    seed: int  # of everything random
    hand_picked: bool = False  # whether the first labels were picked by hand, not drawn at random
    stamp: str = ""  # of the sizes and times of the pool's files: while it is the same, so is the pool

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Settings:
        """Read settings from JSON."""
        reading, classes = dict(described["reading"]), described["classes"]
        known = {name.name for kind in (cls, Reading) for name in fields(kind)}
        if unknown := {*described, *reading} - known:
            raise InputError(
                f"the project has settings that this version does not know: {', '.join(sorted(unknown))}; it "
                "was made by a newer version of coresift: update coresift"
            )
        reading |= {"features": tuple(reading["features"]), "skip": tuple(reading.get("skip", ()))}
        classes = None if classes is None else tuple(classes)
        return cls(**{**described, "reading": Reading(**reading), "classes": classes})


@dataclass(frozen=True)
class Request:
    """A request for a batch."""

    batch_size: int | None = None  # number of items; may be left out if there is a budget
    budget: float | None = None  # what they may cost together
    strategy: str = DEFAULT  # a name from `STRATEGIES`
    exclude: tuple[str, ...] = ()  # ids of items that can never be labelled
    must_include: tuple[str, ...] = ()  # ids of items that the batch must contain
    per_group: int | None = None  # the largest number of items of one group
    candidates: int | None = limits.CANDIDATES  # how many to look at, drawn at random; None for all
    engine: str | None = None  # "ray" for a cluster

    def __post_init__(self) -> None:
        if self.batch_size is None and self.budget is None:
            raise InputError("say how many items with --batch-size, or what they may cost with --budget")
        for name in ("batch_size", "budget", "per_group", "candidates"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"--{name.replace('_', '-')} is {value}, expected a number above zero")
        find_strategy(self.strategy)
