"""Experiments: a short TOML file names what differs from the paper's protocol."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from coresift import estimators, limits
from coresift.bench.data import IMAGES, are_images, checksum, load_images, load_table
from coresift.bench.models import BaggedLogistic, ForestClassifier, ForestRegressor
from coresift.bench.oracle import ORACLE, BeamSearch
from coresift.bench.peers import PEERS
from coresift.bench.replay import Method, Simulation
from coresift.checks import check_integer, check_switch
from coresift.errors import InputError, shown, suggestion
from coresift.estimators.networks import MLP, Augment, ResNet18
from coresift.strategies import STRATEGIES

Options: TypeAlias = dict[str, Any]
Task: TypeAlias = Literal["regression", "classification"]

# Options of models that come from the command line or the runner, or that TOML cannot hold.
_NOT_OPTIONS = {"network", "augment", "device", "progress", "random_state"}
_LEAST = {"seeds": 1, "first": 2, "batch": 1, "budget": 0, "per_class": 0}

_REGRESSORS: dict[str, type[Any]] = {
    "neural-linear": estimators.NeuralLinearRegressor,
    "ensemble": estimators.EnsembleRegressor,
    "dropout": estimators.DropoutRegressor,
    "laplace": estimators.LaplaceRegressor,
    "gaussian-process": estimators.GaussianProcessRegressor,
    "auto": estimators.AutoRegressor,
    "forest": ForestRegressor,
}
_CLASSIFIERS: dict[str, type[Any]] = {
    "neural-linear": estimators.NeuralLinearClassifier,
    "ensemble": estimators.EnsembleClassifier,
    "dropout": estimators.DropoutClassifier,
    "laplace": estimators.LaplaceClassifier,
    "auto": estimators.AutoClassifier,
    "forest": ForestClassifier,
    "bagged-logistic": BaggedLogistic,
}


def _with_mlp(options: Options) -> Options:
    """Replace the widths of an `MLP` by one."""
    if "widths" not in options:
        return options
    widths = options.pop("widths")
    if not isinstance(widths, list) or not all(isinstance(width, int) for width in widths):
        raise InputError(f"widths is {widths!r}, expected a list of integers such as [30, 30]")
    return options | {"network": partial(MLP, widths=tuple(widths))}


def _with_resnet(options: Options) -> Options:
    """Replace the width of a `ResNet18` and the options of an `Augment` by these."""
    width = check_integer(options.pop("width", 64), 1, "[model] width")
    padding = check_integer(options.pop("padding", 0), 0, "[model] padding")
    flip = options.pop("flip", False)
    check_switch(flip, "[model] flip")
    augment = {"augment": Augment(padding, flip)} if padding or flip else {}
    return options | augment | {"network": partial(ResNet18, width=width)}


@dataclass(frozen=True)
class Family:
    """Models for one sort of data: what a file may say, and what it stands for."""

    task: Task
    models: Mapping[str, type[Any]]  # by their kind
    instead: tuple[str, ...] = ("widths",)  # options instead of a network, which TOML cannot hold,
    with_network: Callable[[Options], Options] = _with_mlp  # and what replaces these options by it
    source: tuple[str, ...] = ("target", "model")  # what a file may say of a data set
    defaults: Mapping[str, Options] = field(default_factory=dict)  # options by kind


FAMILIES = {
    # The paper has no calibration.
    "regression": Family("regression", _REGRESSORS, defaults={"neural-linear": {"calibration_folds": 0}}),
    "classification": Family("classification", _CLASSIFIERS),
    "images": Family(
        "classification",
        {kind: _CLASSIFIERS[kind] for kind in ("neural-linear", "dropout")},
        instead=("flip", "padding", "width"),
        with_network=_with_resnet,
        source=("model",),
    ),
}


@dataclass(frozen=True)
class Source:
    """A table or an image set of an experiment."""

    table: str  # a name or a path, for `load_table` or `load_images`
    target: str | None = None  # the column to predict, in a file of the user
    model: Mapping[str, Any] = field(default_factory=dict)  # options of the model, over the experiment's

    @property
    def of_images(self) -> bool:
        """Whether it is an image set."""
        return are_images(self.table)


@dataclass(frozen=True)
class Experiment:
    """Methods to compare on tables or on images.

    Modules, which TOML cannot hold, are replaced in ``model`` by the ``widths`` of an `MLP`, or for images by
    the ``width`` of a `ResNet18` and ``padding`` and ``flip`` of an `Augment`. ``first``, ``batch``,
    ``budget`` and ``test_share`` are those of a `Simulation`; images have a test set of their own. ``first``
    may be "all", with a ``budget`` of zero, to measure the model on all labels.
    """

    data: Mapping[str, Source]  # by their names in the results
    methods: Mapping[str, Method]
    kind: str = "neural-linear"  # of the model, see `FAMILIES`
    model: Mapping[str, Any] = field(default_factory=dict)  # its options
    seeds: int = 40  # the number of runs of each method, with the seeds 0, 1, ...
    first: int | Literal["all"] = 20
    batch: int = 10
    budget: int = 100
    test_share: float = 0.2
    task: Task = "regression"  # of tables; images are classified
    per_class: int = 0  # first labels of each class; there are at least so many in all
    judged: bool = False  # train models that did not choose on the last labelled sets

    def __post_init__(self) -> None:
        if (self.first == "all") != (self.budget == 0):
            raise InputError(f"first is {self.first!r} and budget {self.budget!r}: 'all' goes with 0")
        for name, least in _LEAST.items():
            if getattr(self, name) != "all":
                object.__setattr__(self, name, check_integer(getattr(self, name), least, name))
        if not isinstance(self.test_share, float) or not 0 < self.test_share < 1:
            raise InputError(f"test_share is {self.test_share!r}, expected a number between 0 and 1")
        for name in (*self.data, *self.methods):
            _check_file_name(name)

    @classmethod
    def load(cls, path: Path) -> Experiment:
        """Read a TOML file; unknown words raise an error that suggests similar ones."""
        return cls.of(read_toml(path), path)

    @classmethod
    def of(cls, described: Mapping[str, Any], path: Path) -> Experiment:
        """Make an experiment of what a file says."""
        protocol = {*_LEAST, "test_share", "judged"}
        _check_words(described, {"data", "methods", "method", "model", "task", *protocol}, str(path))
        named = _named(described)
        family = _family(path, described, named)
        model = dict(_table("model", described.get("model", {})))
        kind = model.pop("kind", "neural-linear")
        _check_words([kind], family.models, "model.kind")
        options = family.models[kind]().get_params()
        known = {*options, *(family.instead if "network" in options else ())} - _NOT_OPTIONS
        _check_words(model, known, "[model]")
        for name, source in named.items():
            _check_words(source, family.source, f"[data.{name}]")
            own = _table(f"data.{name}.model", source.get("model", {}))
            _check_words(own, known, f"[data.{name}] model")
            family.with_network({**model, **own})  # raises for values of a wrong type
        data, methods = _sources(named), _methods(described)
        if not data or not methods:
            raise InputError(f"{path} must name at least one data set and one method")
        numbers = {name: described[name] for name in protocol & described.keys()}
        return cls(data, methods, kind, model, **numbers, task=family.task)

    def only(self, data: Iterable[str] = (), methods: Iterable[str] = ()) -> Experiment:
        """Return the part of the experiment with these data sets and methods; all where none are named."""
        _check_words(data, {*self.data}, "--data")
        _check_words(methods, {*self.methods}, "--methods")
        return replace(
            self,
            data={name: self.data[name] for name in data or self.data},
            methods={name: self.methods[name] for name in methods or self.methods},
        )

    def _family(self, data: str) -> Family:
        return FAMILIES["images" if self.data[data].of_images else self.task]

    def options(self, data: str) -> Options:
        """Return the options of the model on a data set."""
        defaults = self._family(data).defaults.get(self.kind, {})
        return {**defaults, **self.model, **self.data[data].model}

    def settings(self, data: str, method: str, simulation: Simulation) -> dict[str, Any]:
        """Return all that decides the results of a method on a data set, for JSON."""
        source = self.data[data]
        settings: dict[str, Any] = {
            "data": asdict(source),
            "checksum": checksum(np.asarray(torch.as_tensor(simulation.x).cpu()), simulation.y),
            "method": asdict(self.methods[method]),
            "model": {"kind": self.kind, **self._model_settings(data, simulation.model)},
            **{name: getattr(self, name) for name in ("first", "batch", "budget", "test_share")},
        }
        for name in ("per_class", "judged"):  # which older logs lack
            settings |= {name: getattr(self, name)} if getattr(self, name) else {}
        if method == ORACLE:
            settings["search"] = asdict(BeamSearch())
        # Published images have their published split; those of a user's file may be split differently later.
        if source.of_images and source.table not in IMAGES:
            settings["num_test"] = simulation.num_test
        if not simulation.one_by_one:
            settings |= {"task": self.task} if self.task == "classification" else {}
            settings["seeds"] = self.seeds  # runs that are trained side by side change with their number
        return settings

    def _model_settings(self, data: str, model: Any) -> Options:
        """Return all options, also the defaults, which may change from version to version."""
        options, given = self.options(data), model.get_params()
        instead = {name: options.get(name) for name in self._family(data).instead}
        return instead | {name: given[name] for name in given if name not in _NOT_OPTIONS}

    def simulation(self, data: str, folder: Path | None, device: str, workers: int) -> Simulation:
        """Load the data and make the model."""
        family, source = self._family(data), self.data[data]
        options = {**self.options(data), "device": device, "progress": False}
        model = family.models[self.kind](**family.with_network(options))
        if source.of_images:
            x, y, num_test = _load_images(source, folder, device)
            split: Options = {"num_test": num_test}
        else:
            x, y = self._load_table(source, folder)
            num_test = round(self.test_share * len(y))
            split = {
                "test_share": self.test_share,
                "workers": workers,
                "per_class": self.per_class,
                "judged": self.judged,
            }
        first = len(y) - num_test if self.first == "all" else self.first
        first = max(first, self.per_class * len(np.unique(y))) if self.per_class else first
        return Simulation(x, y, model, first=first, batch=self.batch, budget=self.budget, **split)

    def _load_table(self, source: Source, folder: Path | None) -> tuple[Any, Any]:
        table = load_table(source.table, folder, source.target)
        if table.classes and self.task == "regression":
            raise InputError(
                f"column {table.target!r} of {source.table} holds words; to predict classes, write "
                "task = 'classification' at the top of the experiment's file"
            )
        return table.x, table.y.astype(int) if table.classes else table.y


def _load_images(source: Source, folder: Path | None, device: str) -> tuple[Any, Any, int]:
    """Return images, the test set at the end, with their labels and the size of the test set."""
    images = load_images(source.table, folder)
    # Bytes, which all fit on a GPU.
    x = torch.from_numpy(np.concatenate([images.x, images.test_x])).to(device)
    return x, np.concatenate([images.y, images.test_y]), len(images.test_y)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None


def _names(name: str, value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise InputError(f"{name} is {value!r}, expected a name or a list of names")
    return names


def _table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{name} is {value!r}, expected a table: options below a line [{name}]")
    return value


def _tables(name: str, value: Any) -> dict[str, dict[str, Any]]:
    """Read tables ``[name.KEY]``."""
    return {key: _table(f"{name}.{key}", inner) for key, inner in _table(name, value).items()}


def _named(described: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read ``data = "yacht"``, a list of names, or tables ``[data.yacht]`` with options."""
    data = described.get("data", {})
    named = _tables("data", data) if isinstance(data, dict) else {name: {} for name in _names("data", data)}
    for name in named:
        if Path(name).suffix and not Path(name).is_file():
            raise InputError(f"there is no file {name!r}, seen from {Path.cwd()}")
    return named


def _family(path: Path, described: Mapping[str, Any], named: Iterable[str]) -> Family:
    of_images = {are_images(name) for name in named}
    if len(of_images) > 1:
        raise InputError(f"{path} has both images and tables; they need models of their own, and a file each")
    tasks = ["classification"] if True in of_images else ["regression", "classification"]
    task = described.get("task", tasks[0])
    _check_words([task], tasks, "task")
    if True not in of_images:
        return FAMILIES[task]
    if "test_share" in described:
        raise InputError(f"{path}: images have a test set of their own; leave out test_share")
    return FAMILIES["images"]


def _sources(named: Mapping[str, Options]) -> dict[str, Source]:
    """Call data sets in the results by their names, or those of their files."""
    data: dict[str, Source] = {}
    for name, source in named.items():
        short = Path(name).stem
        if short in data:
            raise InputError(f"{data[short].table} and {name} would both be {short!r} in the results")
        data[short] = Source(name, **source)
    return data


def _methods(described: Mapping[str, Any]) -> dict[str, Method]:
    known = [field.name for field in fields(Method)]
    own = {}
    for name, options in _tables("method", described.get("method", {})).items():
        _check_words(options, known, f"[method.{name}]")
        own[name] = Method(**{"strategy": name, **options})
    names = _names("methods", described.get("methods", list(own)))
    _check_words(names, {*own, *STRATEGIES, *PEERS, ORACLE}, "methods")
    # A file cannot be called by a name with a colon.
    methods = {name.replace(":", "-"): own.get(name, Method(name)) for name in names}
    for method in methods.values():
        if method.strategy not in (*PEERS, ORACLE):
            method.resolved()  # raises for an unknown strategy or option
    return methods


def _check_words(words: Iterable[str], known: Iterable[str], where: str) -> None:
    for word in words:
        if word not in known:
            raise InputError(f"{where}: {word!r} is not known; {suggestion(word, sorted(known))}")


def _check_file_name(name: str) -> None:
    """Raise for a name of a data set or a method that no file can have."""
    is_odd = not name or name.startswith(".") or set(name) & set('/\\:*?"<>|')
    if is_odd or len(name.encode()) > limits.NAME_BYTES:
        raise InputError(f"{shown(name)} is no name for a file; use letters, digits, '-' and '_'")
