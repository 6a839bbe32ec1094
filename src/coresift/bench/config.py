"""Experiments: a short TOML file names what differs from the paper's protocol."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from coresift.bench.data import IMAGES, Table, are_images, checksum, load_images, load_table
from coresift.bench.replay import Method, Simulation
from coresift.checks import check_integer, check_switch
from coresift.errors import InputError, suggestion
from coresift.estimators import (
    DropoutClassifier,
    DropoutRegressor,
    EnsembleClassifier,
    EnsembleRegressor,
    LaplaceClassifier,
    LaplaceRegressor,
    NeuralLinearClassifier,
    NeuralLinearRegressor,
)
from coresift.estimators.networks import MLP, Augment, ResNet18
from coresift.strategies import STRATEGIES

# Models by what is predicted; images are classified.
MODELS: dict[str, dict[str, type[Any]]] = {
    "regression": {
        "neural-linear": NeuralLinearRegressor,
        "ensemble": EnsembleRegressor,
        "dropout": DropoutRegressor,
        "laplace": LaplaceRegressor,
    },
    "classification": {
        "neural-linear": NeuralLinearClassifier,
        "ensemble": EnsembleClassifier,
        "dropout": DropoutClassifier,
        "laplace": LaplaceClassifier,
    },
    "images": {"neural-linear": NeuralLinearClassifier, "dropout": DropoutClassifier},
}
# The paper has no calibration.
_DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {("regression", "neural-linear"): {"calibration_folds": 0}}
# Options of models that come from the command line or the runner, or that TOML cannot hold,
_NOT_OPTIONS = {"network", "augment", "device", "progress", "random_state"}
# and options that stand for a network and its augmentation instead.
_INSTEAD = {
    "regression": {"widths"},
    "classification": {"widths"},
    "images": {"width", "padding", "flip"},
}
_NUMBERS = {"seeds": 1, "first": 2, "batch": 1, "budget": 0}  # and the least value of each


@dataclass(frozen=True)
class Source:
    """A table or an image set of an experiment, with the options of the model that it needs.

    Attributes
    ----------
    table : a name or a path, for `load_table` or `load_images`.
    target : the column to predict, in a file of the user.
    model : options of the model, over those of the experiment.
    """

    table: str
    target: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def of_images(self) -> bool:
        """Whether it is an image set."""
        return are_images(self.table)


@dataclass(frozen=True)
class Experiment:
    """Methods to compare on tables or on images.

    Attributes
    ----------
    data, methods : by their names in the results.
    kind : of the model, see `MODELS`.
    model : its options; modules, which TOML cannot hold, are replaced by the ``widths`` of an `MLP`, or for
        images by the ``width`` of a `ResNet18` and ``padding`` and ``flip`` of an `Augment`.
    seeds : the number of runs of each method, with the seeds 0, 1, ...
    first, batch, budget, test_share : see `Simulation`; images have a test set of their own. ``first`` may be
        "all", with a ``budget`` of zero, to measure the model on all labels.
    task : what tables are for; images are classified.
    """

    data: Mapping[str, Source]
    methods: Mapping[str, Method]
    kind: str = "neural-linear"
    model: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 40
    first: int | Literal["all"] = 20
    batch: int = 10
    budget: int = 100
    test_share: float = 0.2
    task: Literal["regression", "classification"] = "regression"

    def __post_init__(self) -> None:
        if (self.first == "all") != (self.budget == 0):
            raise InputError(f"first is {self.first!r} and budget {self.budget!r}: 'all' goes with 0")
        for name, least in _NUMBERS.items():
            if getattr(self, name) != "all":
                object.__setattr__(self, name, check_integer(getattr(self, name), least, name))
        if not isinstance(self.test_share, float) or not 0 < self.test_share < 1:
            raise InputError(f"test_share is {self.test_share!r}, expected a number between 0 and 1")
        for name in (*self.data, *self.methods):  # they become names of files
            if not name or name.startswith(".") or set(name) & set('/\\:*?"<>|'):
                raise InputError(f"{name!r} is no name for a file; use letters, digits, '-' and '_'")

    @classmethod
    def load(cls, path: Path) -> Experiment:
        """Read a TOML file; unknown words raise an error that suggests similar ones."""
        described = _read(path)
        protocol = {*_NUMBERS, "test_share"}
        _check_words(described, {"data", "methods", "method", "model", "task", *protocol}, str(path))
        named = _by_name(described.get("data", {}))
        task = _task(path, described, named)
        sort = "images" if task is None else task
        model = dict(described.get("model", {}))
        kind = model.pop("kind", "neural-linear")
        _check_words([kind], set(MODELS[sort]), "model.kind")
        options = {*MODELS[sort][kind]().get_params(), *_INSTEAD[sort]} - _NOT_OPTIONS
        _check_words(model, options, "[model]")
        data, methods = _sources(named, sort, model, options), _methods(described)
        if not data or not methods:
            raise InputError(f"{path} must name at least one data set and one method")
        numbers = {name: described[name] for name in protocol & described.keys()}
        return cls(data, methods, kind, model, **numbers, task=task or "classification")

    def only(self, data: Iterable[str] = (), methods: Iterable[str] = ()) -> Experiment:
        """Return the part of the experiment with these data sets and methods; all where none are named."""
        _check_words(data, set(self.data), "--data")
        _check_words(methods, set(self.methods), "--methods")
        return replace(
            self,
            data={name: self.data[name] for name in data} or self.data,
            methods={name: self.methods[name] for name in methods} or self.methods,
        )

    def _sort(self, data: str) -> str:
        """Return the key in `MODELS`."""
        return "images" if self.data[data].of_images else self.task

    def options(self, data: str) -> dict[str, Any]:
        """Return the options of the model on a data set."""
        defaults = _DEFAULTS.get((self._sort(data), self.kind), {})
        return {**defaults, **self.model, **self.data[data].model}

    def settings(self, data: str, method: str, simulation: Simulation) -> dict[str, Any]:
        """Return all that decides the results of a method on a data set, for JSON."""
        source, options = self.data[data], self.options(data)
        # Defaults too: they may change from version to version.
        instead = {name: options.get(name) for name in sorted(_INSTEAD[self._sort(data)])}
        given = simulation.model.get_params()
        given = {name: value for name, value in given.items() if name not in _NOT_OPTIONS}
        settings: dict[str, Any] = {
            "data": asdict(source),
            "checksum": checksum(np.asarray(torch.as_tensor(simulation.x).cpu()), simulation.y),
            "method": asdict(self.methods[method]),
            "model": {"kind": self.kind, **instead, **given},
            "first": self.first,
            "batch": self.batch,
            "budget": self.budget,
            "test_share": self.test_share,
        }
        # Published images have their published split; those of a user's file may be split differently later.
        if source.of_images and source.table not in IMAGES:
            settings["num_test"] = simulation.num_test
        if not simulation.one_by_one:
            if self.task == "classification":
                settings["task"] = self.task
            settings["seeds"] = self.seeds  # runs that are trained side by side change with their number
        return settings

    def simulation(self, data: str, folder: Path | None, device: str, workers: int) -> Simulation:
        """Load the data and make the model."""
        options = {**self.options(data), "device": device, "progress": False}
        make = MODELS[self._sort(data)][self.kind]
        if self.data[data].of_images:
            images = load_images(self.data[data].table, folder)
            return self._replay(
                # Bytes, which all fit on a GPU.
                torch.from_numpy(np.concatenate([images.x, images.test_x])).to(device),
                np.concatenate([images.y, images.test_y]),
                make(**_with_image_network(options)),
                num_known=len(images.y),
                num_test=len(images.test_y),
            )
        table = self._table(data, folder)
        return self._replay(
            table.x,
            table.y.astype(int) if table.classes else table.y,
            make(**_with_network(options)),
            num_known=len(table.x) - round(self.test_share * len(table.x)),
            test_share=self.test_share,
            workers=workers,
        )

    def _replay(self, x: Any, y: Any, model: Any, *, num_known: int, **others: Any) -> Simulation:
        first = num_known if self.first == "all" else self.first
        return Simulation(x, y, model, first=first, batch=self.batch, budget=self.budget, **others)

    def _table(self, data: str, folder: Path | None) -> Table:
        source = self.data[data]
        table = load_table(source.table, folder, source.target)
        if table.classes and self.task == "regression":
            raise InputError(
                f"column {table.target!r} of {source.table} holds words; to predict classes, write "
                "task = 'classification' at the top of the experiment's file"
            )
        return table


def _with_network(options: dict[str, Any]) -> dict[str, Any]:
    """Replace the widths of an `MLP` by one."""
    if "widths" not in options:
        return options
    widths = options.pop("widths")
    if not isinstance(widths, list) or not all(isinstance(width, int) for width in widths):
        raise InputError(f"widths is {widths!r}, expected a list of integers such as [30, 30]")
    return options | {"network": partial(MLP, widths=tuple(widths))}


def _with_image_network(options: dict[str, Any]) -> dict[str, Any]:
    """Replace the width of a `ResNet18` and the options of an `Augment` by these."""
    width, padding, flip = options.pop("width", 64), options.pop("padding", 0), options.pop("flip", False)
    if padding or flip:
        options["augment"] = Augment(padding, flip)
    return options | {"network": partial(ResNet18, width=width)}


# The file.


def _read(path: Path) -> dict[str, Any]:
    try:
        described = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    for name in ("data", "methods"):
        _check_names(name, described.get(name, []))
    for name in ("model", "method"):
        _check_table(name, described.get(name, {}))
    for name in ("data", "method"):
        inner = described.get(name, {})
        for key in inner if isinstance(inner, dict) else ():
            _check_table(f"{name}.{key}", inner[key])
    return described


def _check_names(name: str, value: Any) -> None:
    if isinstance(value, str) or (name == "data" and isinstance(value, dict)):
        return
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{name} is {value!r}, expected a name or a list of names")


def _check_table(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise InputError(f"{name} is {value!r}, expected a table: options below a line [{name}]")


def _by_name(data: Any) -> dict[str, dict[str, Any]]:
    """Read ``data = "yacht"``, a list of names, or tables ``[data.yacht]`` with options."""
    names = [data] if isinstance(data, str) else data
    named = dict(names) if isinstance(names, dict) else {name: {} for name in names}
    for name in named:
        if Path(name).suffix and not Path(name).is_file():
            raise InputError(f"there is no file {name!r}, seen from {Path.cwd()}")
    return named


def _task(
    path: Path, described: Mapping[str, Any], named: Iterable[str]
) -> Literal["regression", "classification"] | None:
    """Return what tables are for; ``None`` for images."""
    kinds = {are_images(name) for name in named}
    if len(kinds) > 1:
        raise InputError(f"{path} has both images and tables; they need models of their own, and a file each")
    if True not in kinds:
        task: Literal["regression", "classification"] = described.get("task", "regression")
        _check_words([task], {"classification", "regression"}, "task")
        return task
    if "test_share" in described:
        raise InputError(f"{path}: images have a test set of their own; leave out test_share")
    _check_words([described.get("task", "classification")], {"classification"}, "task")
    return None


def _sources(
    named: Mapping[str, dict[str, Any]], sort: str, model: Mapping[str, Any], options: set[str]
) -> dict[str, Source]:
    """Read the data sets, by their names in the results."""
    data: dict[str, Source] = {}
    for name, source in named.items():
        _check_words(source, {"model"} if sort == "images" else {"target", "model"}, f"[data.{name}]")
        own = source.get("model", {})
        _check_words(own, options, f"[data.{name}] model")
        _check_values({**model, **own})
        short = Path(name).stem
        if short in data:
            raise InputError(f"{data[short].table} and {name} would both be {short!r} in the results")
        data[short] = Source(name, **source)
    return data


def _methods(described: Mapping[str, Any]) -> dict[str, Method]:
    own = {}
    for name, method in described.get("method", {}).items():
        _check_words(method, {field.name for field in fields(Method)}, f"[method.{name}]")
        own[name] = Method(**{"strategy": name, **method})
    names = described.get("methods", list(own))
    names = [names] if isinstance(names, str) else names
    _check_words(names, {*own, *STRATEGIES}, "methods")
    methods = {name: own.get(name, Method(name)) for name in names}
    for method in methods.values():
        method.resolved()  # raises for an unknown strategy or option
    return methods


def _check_values(model: Mapping[str, Any]) -> None:
    """Raise where an option that stands for a module has the wrong type."""
    for name, least in (("width", 1), ("padding", 0)):
        check_integer(model.get(name, least), least, f"[model] {name}")
    check_switch(model.get("flip", True), "[model] flip")


def _check_words(words: Iterable[str], known: set[str], where: str) -> None:
    for word in words:
        if word not in known:
            raise InputError(f"{where}: {word!r} is not known; {suggestion(word, sorted(known))}")
