"""The record of experiments: rounds appended as they finish, one file for each data set and method; and all
of them packed into one.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from coresift.atomic import replacing, write_text
from coresift.bench.replay import Round
from coresift.types import InputError

PACKED = "rounds.parquet"

# How the lines begin that say where rounds come from, and the place of that in a packed file.
_HEADER = '{"settings"'
_ORIGINS = b"coresift"


@dataclass(frozen=True)
class Record:
    """The rounds of one run, as far as it has come."""

    data: str
    method: str
    seed: int
    rounds: tuple[Round, ...]

    @property
    def done(self) -> bool:
        """Whether all labels are bought and learned."""
        return not self.rounds[-1].chosen


@dataclass(frozen=True)
class Log:
    """The rounds of all seeds of one method on one data set, in JSON lines, after one on how they came.

    A line is written whole or not at all: what a killed run left of its last line is dropped. Files of
    different seeds may be joined end to end.

    Attributes
    ----------
    path : ``FOLDER/DATA/METHOD.jsonl``
    """

    path: Path

    def open(self, settings: Mapping[str, Any], made: Mapping[str, str] | None = None) -> None:
        """Begin the file, or check that the rounds that are there were made with the same settings.

        Parameters
        ----------
        settings : all that decides the results.
        made : where they come from, such as the command and the versions.
        """
        if not self.path.exists() or not self.rounds():  # such as after a mistake in the model's options
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._replace([{"settings": settings, "made": [made or {}]}])
            return
        before = self.settings()
        if before != settings:
            raise InputError(
                f"{self.path} was made with other settings ({'; '.join(_changes(before, settings))}); "
                "name another folder with --out, or remove that file"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes away; the lock goes with this process, however it ends."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_name(f".{self.path.stem}.lock")
        try:
            with FileLock(lock, timeout=0):
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
        except Timeout:
            raise InputError(f"another process is writing to {self.path}; wait for it, or end it") from None

    def settings(self) -> dict[str, Any]:
        """All that decided the results."""
        first, *others = (line["settings"] for line in self._lines(_HEADER))
        if any(other != first for other in others):
            raise InputError(f"{self.path} is joined from files that were made with different settings")
        found: dict[str, Any] = first
        return found

    def made(self) -> list[dict[str, str]]:
        """Where the results come from: the run that began them, and those that went on."""
        return [each for line in self._lines(_HEADER) for each in line["made"]]

    def rounds(self) -> dict[int, list[Round]]:
        """The rounds of each seed, in order."""
        found: dict[int, list[Round]] = {}
        for line in self._lines():
            if "settings" in line:
                continue
            try:
                seed, turn = line.pop("seed"), _round(line)
            except (KeyError, TypeError):
                raise InputError(f"{self.path} holds something else than rounds of experiments") from None
            turns = found.setdefault(seed, [])
            if turns and turn.fits <= turns[-1].fits:
                raise InputError(
                    f"{self.path} is damaged, or joined from files that share a seed: seed {seed} has fit "
                    f"{turn.fits} after fit {turns[-1].fits}; remove that file"
                )
            turns.append(turn)
        return found

    def append(self, rounds: Mapping[int, Round]) -> None:
        """Write a round of each seed, through to the disk."""
        text = "".join(json.dumps({"seed": seed, **_described(turn)}) + "\n" for seed, turn in rounds.items())
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def cut(self, rounds: Mapping[int, Sequence[Round]], made: Mapping[str, str] | None = None) -> None:
        """Keep these rounds only: what a killed run wrote of an unfinished turn is done again.

        Parameters
        ----------
        made : where further rounds will come from.
        """
        longest = max((len(each) for each in rounds.values()), default=0)
        kept = [
            {"seed": seed, **_described(each[turn])}
            for turn in range(longest)
            for seed, each in rounds.items()
            if turn < len(each)
        ]
        before = self.made()
        after = [*before, made] if made is not None and made not in before else before
        self._replace([{"settings": self.settings(), "made": after}, *kept])

    def _lines(self, start: str = "") -> Iterator[dict[str, Any]]:
        """Those that begin so."""
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.startswith(start) and line.endswith("\n"):  # else the run was killed while it wrote
                    try:
                        yield json.loads(line)
                    except json.JSONDecodeError:
                        raise InputError(
                            f"line {number} of {self.path} is damaged; if files were joined, go on with the "
                            "unfinished one first, so that its last line is whole"
                        ) from None

    def _replace(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the whole file anew; whoever looks sees the old one or the new one."""
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in lines))


@dataclass(frozen=True)
class Origin:
    """How the runs of one method on one data set came about: the settings, and what made them."""

    settings: dict[str, Any]
    made: list[dict[str, str]]


Origins: TypeAlias = dict[tuple[str, str], Origin]


def read(folder: Path) -> tuple[list[Record], Origins]:
    """All runs recorded in a folder, by data set, method and seed, and where they come from.

    They are in its logs, DATA/METHOD.jsonl, or else in the file that `pack` made of them.
    """
    logs = {(path.parent.name, path.stem): Log(path) for path in sorted(folder.glob("*/*.jsonl"))}
    if logs:
        records = [
            Record(*name, seed, tuple(rounds))
            for name, log in logs.items()
            for seed, rounds in sorted(log.rounds().items())
        ]
        return records, {name: Origin(log.settings(), log.made()) for name, log in logs.items()}
    if not (folder / PACKED).exists():
        raise InputError(f"{folder} holds no results: there is no DATA/METHOD.jsonl or {PACKED} in it")
    return _unpack(folder / PACKED)


def pack(records: Sequence[Record], origins: Origins, path: Path) -> None:
    """Write all rounds of all runs, finished or not, as one Parquet file.

    A file that is there is replaced, unless it has runs that would then be nowhere.
    """
    kept = _unpack(path)[0] if path.exists() else []
    done = {(record.data, record.method, record.seed): record.done for record in records}
    # Less than a finished run is an unfinished one, and less than either is none.
    lost = [one for one in kept if one.done > done.get((one.data, one.method, one.seed), -1)]
    if lost:
        names = ", ".join(dict.fromkeys(f"{one.method} on {one.data}" for one in lost))
        raise InputError(
            f"{path} has runs of {names} that would be lost if it were written anew; "
            "name another folder with --out, or move that file away"
        )
    name, count, number = pa.dictionary(pa.int16(), pa.string()), pa.int32(), pa.float64()
    columns = {
        "data": name,
        "method": name,
        "seed": count,
        "fits": count,
        "labels": count,
        "guessed": count,
        "rmse": number,
        "accuracy": number,
        "log_density": number,
        "calibration_error": number,
        "fit_seconds": number,
        "select_seconds": number,
        "chosen": pa.list_(count),
    }
    rows = [{**vars(record), **vars(turn)} for record in records for turn in record.rounds]
    arrays = {name: pa.array([row[name] for row in rows], type=kind) for name, kind in columns.items()}
    described = json.dumps([[*name, asdict(origin)] for name, origin in origins.items()])
    table = pa.table(arrays).replace_schema_metadata({_ORIGINS: described})
    with replacing(path) as file:  # the old one may be all there is of these rounds
        pq.write_table(table, file, compression="zstd")


def _unpack(path: Path) -> tuple[list[Record], Origins]:
    """What `pack` was given, but for the guesses of imputed labels.

    Of a run that stopped amid a batch of those, the last round seems to have bought what it had chosen.
    """
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is damaged, or no Parquet file: {error}") from None
    if missing := sorted({"data", "method", "seed", "fits", "labels", "chosen"} - {*table.column_names}):
        raise InputError(f"{path} holds no rounds of experiments: it has no column {missing[0]!r}")
    described = json.loads((table.schema.metadata or {}).get(_ORIGINS, b"[]"))
    origins = {(data, method): Origin(**origin) for data, method, origin in described}
    whose, records = ("data", "method", "seed"), []
    turns = table.drop_columns(whose).to_pylist()
    runs = table.select(whose).to_pylist()
    for run in runs:
        _check_name(run["data"], path)
    for run, group in groupby(zip(runs, turns, strict=True), lambda pair: pair[0]):
        records.append(Record(**run, rounds=_with_purchases([_round(turn) for _, turn in group])))
    return records, origins


def _check_name(name: Any, path: Path) -> None:
    """Raise for the name of a data set that no file can have: figures are named by it."""
    if not isinstance(name, str) or not name.isprintable() or name in ("", ".", "..") or {*name} & {*"/\\:"}:
        raise InputError(f"{path} holds no rounds of experiments: {name!r} cannot be a data set's name")


def _with_purchases(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """Rounds as they were, from what had been chosen and how many labels there were then."""
    found: list[Round] = []
    waiting: tuple[int, ...] = ()
    for turn, after in pairwise([*rounds, None]):
        assert turn is not None
        waiting += turn.chosen
        bought = after is None or after.labels > turn.labels
        found.append(replace(turn, bought=waiting if bought else ()))
        waiting = () if bought else waiting
    return tuple(found)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """What differs, in words: ``model.epochs 2, now 3``."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, f"{within}{name}.")
        elif old != new:
            yield f"{within}{name} {reprlib.repr(old)}, now {reprlib.repr(new)}"


def _described(turn: Round) -> dict[str, Any]:
    """Without empty entries, so that a line stays short."""
    return {name: value for name, value in asdict(turn).items() if not (value is None or value == ())}


def _round(described: dict[str, Any]) -> Round:
    for name in ("chosen", "guesses", "bought"):
        described[name] = tuple(described.get(name, ()))
    return Round(**{"rmse": None, **described})
