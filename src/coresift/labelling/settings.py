"""What a project was told when it began, and what a batch is asked for with."""

from __future__ import annotations

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
    """What a project was told when it began.

    Attributes
    ----------
    reading : how the pool is read.
    kind : of pool.
    task, target : what is learned.
    classes : the labels that are allowed; ``None`` for any.
    features : what was made of the pool, in words.
    fingerprint : of the pool.
    seed : of everything that is drawn.
    hand_picked : whether labels that were there at first were picked by hand, and not drawn at random.
    stamp : sizes and times of the pool's files: while they are the same, so is the pool.
    """

    reading: Reading
    kind: str
    task: Task
    target: str
    classes: tuple[str, ...] | None
    features: str
    fingerprint: str
    seed: int
    hand_picked: bool = False
    stamp: str = ""

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Settings:
        """Read settings back from what JSON made of them."""
        reading = dict(described["reading"])
        known = {name.name for kind in (cls, Reading) for name in fields(kind)}
        if unknown := {*described, *reading} - known:
            raise InputError(
                f"the project has settings that this version does not know: {', '.join(sorted(unknown))}; it "
                "was made by a newer version of coresift: update coresift"
            )
        reading["features"] = tuple(reading["features"])
        reading["skip"] = tuple(reading.get("skip", ()))
        classes = described["classes"]
        return cls(
            **{
                **described,
                "reading": Reading(**reading),
                "classes": None if classes is None else tuple(classes),
            }
        )


@dataclass(frozen=True)
class Request:
    """What a batch is asked for with.

    Attributes
    ----------
    batch_size : how many items; may be left out where there is a budget.
    budget : what they may cost together.
    strategy : a name from `STRATEGIES`.
    exclude : ids of items that cannot be labelled, now or later.
    must_include : ids of items that the batch has to hold.
    per_group : at most so many items of one group.
    candidates : how many items to look at, drawn at random; ``None`` for all.
    engine : "ray" for a cluster.
    """

    batch_size: int | None = None
    budget: float | None = None
    strategy: str = DEFAULT
    exclude: tuple[str, ...] = ()
    must_include: tuple[str, ...] = ()
    per_group: int | None = None
    candidates: int | None = limits.CANDIDATES
    engine: str | None = None

    def __post_init__(self) -> None:
        if self.batch_size is None and self.budget is None:
            raise InputError("say how many items with --batch-size, or what they may cost with --budget")
        for name in ("batch_size", "budget", "per_group", "candidates"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"--{name.replace('_', '-')} is {value}, expected a number above zero")
        find_strategy(self.strategy)
