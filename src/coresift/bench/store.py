"""Record experiments: a file of rounds for each data set and method, and all of them packed into one."""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from coresift import limits
from coresift.atomic import replacing, write_text
from coresift.bench.replay import Round
from coresift.errors import InputError, shown

PACKED = "rounds.parquet"

# The beginning of lines that say where rounds come from, and the key of that in a packed file.
_HEADER = '{"settings"'
_ORIGINS = b"coresift"

_TEXT, _INTEGER, _NUMBER = pa.dictionary(pa.int16(), pa.string()), pa.int32(), pa.float64()
_COLUMNS = {
    **dict.fromkeys(("data", "method"), _TEXT),
    **dict.fromkeys(("seed", "fits", "labels", "guessed"), _INTEGER),
    **dict.fromkeys(("rmse", "accuracy", "log_density", "calibration_error"), _NUMBER),
    **dict.fromkeys(("fit_seconds", "select_seconds"), _NUMBER),
    "chosen": pa.list_(_INTEGER),
}
_JUDGED = {"judged": pa.map_(pa.string(), _NUMBER)}  # where other models were trained as well


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

    def finished(self, labels: int) -> bool:
        """Tell whether it is done with so many labels, all of them true ones."""
        last = self.rounds[-1]
        return self.done and last.labels == labels and not last.guessed

    @property
    def purchases(self) -> list[int]:
        """How many labels came in at a time."""
        return [len(turn.bought) for turn in self.rounds if turn.bought]

    @property
    def key(self) -> tuple[str, str, int]:
        """Which run it is."""
        return self.data, self.method, self.seed


@dataclass(frozen=True)
class Log:
    """The rounds of all seeds of one method on one data set, as JSON lines after a header with their origin.

    A line is written whole or not at all: an unfinished last line of a killed run is dropped. Files of
    different seeds may be concatenated.
    """

    path: Path  # FOLDER/DATA/METHOD.jsonl

    @property
    def name(self) -> tuple[str, str]:
        """The data set and the method."""
        return self.path.parent.name, self.path.stem

    def open(self, settings: Mapping[str, Any], made: Mapping[str, str] | None = None) -> None:
        """Begin the file, or check that its rounds were made with the same settings.

        Settings are all that decides the results; ``made`` says where they come from, such as the command.
        """
        settings = json.loads(json.dumps(settings))  # as they are read again, with lists instead of tuples
        if not self.path.exists() or not self.rounds():  # such as after a mistake in the model's options
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._replace([{"settings": settings, "made": [made or {}]}])
        elif (before := self.settings()) != settings:
            raise InputError(
                f"{self.path} was made with other settings ({'; '.join(_changes(before, settings))}); "
                "name another folder with --out, or remove that file"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes away; the lock ends with this process, however it ends."""
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
        first, *others = (line["settings"] for line in self._lines(_HEADER))
        if any(other != first for other in others):
            raise InputError(f"{self.path} is joined from files that were made with different settings")
        return dict(first)

    def made(self) -> list[dict[str, str]]:
        """Return where the results come from: the run that began them, and those that continued."""
        return [one for line in self._lines(_HEADER) for one in line["made"]]

    def rounds(self) -> dict[int, list[Round]]:
        """Return the rounds of each seed, in order."""
        rounds = defaultdict[int, list[Round]](list)
        for line in self._lines():
            if "settings" not in line:
                seed, turn = self._parsed(line)
                self._check_order(seed, rounds[seed], turn)
                rounds[seed].append(turn)
        return dict(rounds)

    def _parsed(self, line: dict[str, Any]) -> tuple[int, Round]:
        try:
            return line.pop("seed"), _round(line)
        except (KeyError, TypeError):
            raise InputError(f"{self.path} holds something else than rounds of experiments") from None

    def _check_order(self, seed: int, before: Sequence[Round], turn: Round) -> None:
        if before and turn.fits <= before[-1].fits:
            raise InputError(
                f"{self.path} is damaged, or joined from files that share a seed: seed {seed} has "
                f"fit {turn.fits} after fit {before[-1].fits}; remove that file"
            )

    def records(self) -> list[Record]:
        """Return the runs of all seeds, sorted."""
        return [Record(*self.name, seed, tuple(rounds)) for seed, rounds in sorted(self.rounds().items())]

    def append(self, rounds: Mapping[int, Round]) -> None:
        """Write a round of each seed, through to the disk."""
        text = "".join(json.dumps(_described(seed, turn)) + "\n" for seed, turn in rounds.items())
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def cut(self, rounds: Mapping[int, Sequence[Round]], made: Mapping[str, str] | None = None) -> None:
        """Keep only these rounds: a turn that a killed run did not finish is repeated.

        ``made`` says where further rounds will come from.
        """
        turns = zip_longest(*rounds.values())
        kept = [_described(*pair) for turn in turns for pair in zip(rounds, turn, strict=True) if pair[1]]
        before = self.made()
        after = [*before, made] if made and made not in before else before
        self._replace([{"settings": self.settings(), "made": after}, *kept])

    def _lines(self, start: str = "") -> Iterator[dict[str, Any]]:
        """Read the lines that begin with ``start``."""
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not (line.startswith(start) and line.endswith("\n")):  # killed while it wrote
                    continue
                try:
                    yield json.loads(line)
                except json.JSONDecodeError:
                    raise InputError(
                        f"line {number} of {self.path} is damaged; if files were joined, continue the "
                        "unfinished one first, so that its last line is whole"
                    ) from None

    def _replace(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the whole file; readers see the old one or the new one."""
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in lines))


@dataclass(frozen=True)
class Origin:
    """How the runs of one method on one data set were made: the settings, and the commands and versions."""

    settings: dict[str, Any]
    made: list[dict[str, str]]


Origins: TypeAlias = dict[tuple[str, str], Origin]


def read(folder: Path) -> tuple[list[Record], Origins]:
    """Read all runs recorded in a folder, by data set, method and seed, and where they come from.

    They are in logs, DATA/METHOD.jsonl, or in the file that `pack` made of them.
    """
    logs = [Log(path) for path in sorted(folder.glob("*/*.jsonl"))]
    if logs:
        records = list(chain.from_iterable(log.records() for log in logs))
        return records, {log.name: Origin(log.settings(), log.made()) for log in logs}
    if not (folder / PACKED).exists():
        raise InputError(f"{folder} holds no results: there is no DATA/METHOD.jsonl or {PACKED} in it")
    return _unpack(folder / PACKED)


def pack(records: Sequence[Record], origins: Origins, path: Path) -> None:
    """Write all rounds of all runs, finished or not, as one Parquet file.

    An existing file is replaced, unless it has runs that would be lost.
    """
    if path.exists():
        _check_kept(records, path)
    rows = [{**vars(record), **vars(turn)} for record in records for turn in record.rounds]
    described = json.dumps([[*name, asdict(origin)] for name, origin in origins.items()])
    columns = _COLUMNS | (_JUDGED if any(row["judged"] for row in rows) else {})
    table = pa.Table.from_pylist(rows, pa.schema(columns, {_ORIGINS: described}))
    with replacing(path) as file:  # the old one may be all there is of these rounds
        pq.write_table(table, file, compression="zstd")


def _check_kept(records: Sequence[Record], path: Path) -> None:
    """Raise if a packed file has runs that are missing in the records, or that are finished only there."""
    done = {record.key: record.done for record in records}
    lost = [record for record in _unpack(path)[0] if record.done > done.get(record.key, -1)]
    if lost:
        names = ", ".join(dict.fromkeys(f"{record.method} on {record.data}" for record in lost))
        raise InputError(
            f"{path} has runs of {names} that would be lost if it were replaced; "
            "name another folder with --out, or move that file away"
        )


def _unpack(path: Path) -> tuple[list[Record], Origins]:
    """Read what `pack` was given, except for pseudo-labels.

    If a run stopped within an imputed batch, its last round seems to have bought what it had chosen.
    """
    table = _read_packed(path)
    described = json.loads((table.schema.metadata or {}).get(_ORIGINS, b"[]"))
    runs = defaultdict[tuple[str, str, int], list[Round]](list)
    for row in table.to_pylist():
        runs[row.pop("data"), row.pop("method"), row.pop("seed")].append(_round(row))
    records = [Record(*key, _with_purchases(rounds)) for key, rounds in runs.items()]
    return records, {(data, method): Origin(**origin) for data, method, origin in described}


def _read_packed(path: Path) -> Any:
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is damaged, or no Parquet file: {error}") from None
    if missing := sorted({"data", "method", "seed", "fits", "labels", "chosen"} - {*table.column_names}):
        raise InputError(f"{path} holds no rounds of experiments: it has no column {missing[0]!r}")
    for name in table["data"].unique().to_pylist():  # figures are named by it
        if not _is_part_of_file_names(name):
            raise InputError(
                f"{path} holds no rounds of experiments: {shown(name)} cannot be a data set's name"
            )
    return table


def _is_part_of_file_names(name: Any) -> bool:
    is_odd = not isinstance(name, str) or not name.isprintable() or re.search(r"^\.{0,2}$|[/\\:]", name)
    return not is_odd and len(name.encode()) <= limits.NAME_BYTES


def _with_purchases(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """Restore what was bought, from what was chosen and the number of labels."""
    restored: list[Round] = []
    chosen: tuple[int, ...] = ()
    for turn, after in zip_longest(rounds, rounds[1:]):
        chosen += turn.chosen
        bought = after is None or after.labels > turn.labels
        restored.append(replace(turn, bought=chosen if bought else ()))
        chosen = () if bought else chosen
    return tuple(restored)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Describe differences, such as ``model.epochs 2, now 3``."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, f"{within}{name}.")
        elif old != new:
            yield f"{within}{name} {reprlib.repr(old)}, now {reprlib.repr(new)}"


def _described(seed: int, turn: Round) -> dict[str, Any]:
    """Describe a round for JSON, without empty entries, so that a line stays short."""
    entries = {name: value for name, value in asdict(turn).items() if not (value is None or value == ())}
    return {"seed": seed, **entries}


def _round(described: dict[str, Any]) -> Round:
    for name in ("chosen", "guesses", "bought"):
        described[name] = tuple(described.get(name, ()))
    if described.get("judged"):  # a packed file has pairs
        described["judged"] = dict(described["judged"])
    return Round(**{"rmse": None, **described})
