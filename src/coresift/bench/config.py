"""What an experiment is: a short TOML file that names what differs from the paper's protocol."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from coresift.bench.data import IMAGES, are_images, checksum, load_images, load_table
from coresift.bench.replay import Method, Simulation
from coresift.checks import check_integer, check_switch
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
from coresift.types import InputError

MODELS: dict[str, type[Any]] = {
    "neural-linear": NeuralLinearRegressor,
    "ensemble": EnsembleRegressor,
    "dropout": DropoutRegressor,
    "laplace": LaplaceRegressor,
}
# The same for classes, in tables and of images.
CLASSIFIERS: dict[str, type[Any]] = {
    "neural-linear": NeuralLinearClassifier,
    "ensemble": EnsembleClassifier,
    "dropout": DropoutClassifier,
    "laplace": LaplaceClassifier,
}
IMAGE_MODELS: dict[str, type[Any]] = {"neural-linear": NeuralLinearClassifier, "dropout": DropoutClassifier}
# The paper has no calibration.
_DEFAULTS: dict[str, dict[str, Any]] = {"neural-linear": {"calibration_folds": 0}}
# Said on the command line, by the runner or by what TOML can hold instead of a module.
_NOT_OPTIONS = {"network", "augment", "device", "progress", "random_state"}
_INSTEAD, _INSTEAD_FOR_IMAGES = {"widths"}, {"width", "padding", "flip"}


@dataclass(frozen=True)
class Source:
    """A table or a set of images of an experiment, with the options of the model that it needs.

    Attributes
    ----------
    table : a name or a path, for `load_table` or `load_images`.
    target : the column to predict, in a file of one's own.
    model : options of the model, over those of the experiment.
    """

    table: str
    target: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def of_images(self) -> bool:
        """Whether it is a set of images."""
        return are_images(self.table)


@dataclass(frozen=True)
class Experiment:
    """Methods to compare on tables, or on images.

    Attributes
    ----------
    data, methods : by the names they have in the results.
    kind : a name in `MODELS`, for classes in `CLASSIFIERS`, or for images in `IMAGE_MODELS`.
    model : its options; instead of modules, which TOML cannot hold, the ``widths`` of an `MLP`, or for images
        the ``width`` of a `ResNet18`, and ``padding`` and ``flip`` of an `Augment`.
    seeds : how many runs of each method, with the seeds 0, 1, ...
    first, batch, budget, test_share : see `Simulation`; images have a test set of their own. ``first`` may be
        "all", with a ``budget`` of zero, for what a model is worth with every label.
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
        for name, least in (("seeds", 1), ("first", 2), ("batch", 1), ("budget", 0)):
            if (name, getattr(self, name)) != ("first", "all"):
                object.__setattr__(self, name, check_integer(getattr(self, name), least, name))
        if not isinstance(self.test_share, float) or not 0 < self.test_share < 1:
            raise InputError(f"test_share is {self.test_share!r}, expected a number between 0 and 1")
        for name in (*self.data, *self.methods):  # they become names of files
            if not name or name.startswith(".") or set(name) & set('/\\:*?"<>|'):
                raise InputError(f"{name!r} is no name for a file; use letters, digits, '-' and '_'")

    @classmethod
    def load(cls, path: Path) -> Experiment:
        """Read a TOML file; a word that nobody understands raises an error that says the near ones."""
        try:
            described = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is not TOML: {error}") from None
        _check_kinds(described)
        numbers = {"seeds", "first", "batch", "budget", "test_share"}
        _check_words(described, {"data", "methods", "method", "model", "task", *numbers}, str(path))
        model = dict(described.get("model", {}))
        kind = model.pop("kind", "neural-linear")
        named = _by_name(described.get("data", {}))
        for name in named:
            if Path(name).suffix and not Path(name).is_file():
                raise InputError(f"there is no file {name!r}, seen from {Path.cwd()}")
        kinds = {are_images(name) for name in named}
        images = True in kinds
        if len(kinds) > 1:
            raise InputError(
                f"{path} has both images and tables; they need models of their own, and a file each"
            )
        if images and "test_share" in described:
            raise InputError(f"{path}: images have a test set of their own; leave out test_share")
        task = described.get("task", "classification" if images else "regression")
        _check_words([task], {"classification"} if images else {"classification", "regression"}, "task")
        models = IMAGE_MODELS if images else CLASSIFIERS if task == "classification" else MODELS
        _check_words([kind], set(models), "model.kind")
        instead = _INSTEAD_FOR_IMAGES if images else _INSTEAD
        options = {*models[kind]().get_params(), *instead} - _NOT_OPTIONS
        _check_words(model, options, "[model]")
        data: dict[str, Source] = {}
        for name, source in named.items():
            _check_words(source, {"model"} if images else {"target", "model"}, f"[data.{name}]")
            _check_words(source.get("model", {}), options, f"[data.{name}] model")
            _check_values({**model, **source.get("model", {})})
            short = Path(name).stem
            if short in data:
                raise InputError(f"{data[short].table} and {name} would both be {short!r} in the results")
            data[short] = Source(name, **source)
        own = {}
        for name, method in described.get("method", {}).items():
            _check_words(method, {one.name for one in fields(Method)}, f"[method.{name}]")
            own[name] = Method(**{"strategy": name, **method})
        names = described.get("methods", list(own))
        names = [names] if isinstance(names, str) else names
        _check_words(names, {*own, *STRATEGIES}, "methods")
        methods = {name: own.get(name, Method(name)) for name in names}
        for method in methods.values():
            method.resolved()  # raises where its strategy or an option is unknown
        if not data or not methods:
            raise InputError(f"{path} must name at least one data set and one method")
        protocol = {name: described[name] for name in numbers & described.keys()}
        return cls(data, methods, kind, model, **protocol, task=task)

    def only(self, data: Iterable[str] = (), methods: Iterable[str] = ()) -> Experiment:
        """The part of the experiment with these data sets and methods; all where none are named."""
        _check_words(data, set(self.data), "--data")
        _check_words(methods, set(self.methods), "--methods")
        return replace(
            self,
            data={name: self.data[name] for name in data} or self.data,
            methods={name: self.methods[name] for name in methods} or self.methods,
        )

    def options(self, data: str) -> dict[str, Any]:
        """The options of the model on a data set."""
        classes = self.data[data].of_images or self.task == "classification"
        defaults = {} if classes else _DEFAULTS.get(self.kind, {})
        return {**defaults, **self.model, **self.data[data].model}

    def settings(self, data: str, method: str, simulation: Simulation) -> dict[str, Any]:
        """All that decides the results of a method on a data set, for JSON."""
        given = simulation.model.get_params()
        # Published images have their published split; those of a file of one's own may be split anew.
        own_images = self.data[data].of_images and self.data[data].table not in IMAGES
        return {
            "data": asdict(self.data[data]),
            "checksum": checksum(np.asarray(torch.as_tensor(simulation.x).cpu()), simulation.y),
            "method": asdict(self.methods[method]),
            # Defaults too: they may change from version to version.
            "model": {
                "kind": self.kind,
                **{name: self.options(data).get(name) for name in self._instead(data)},
                **{name: value for name, value in given.items() if name not in _NOT_OPTIONS},
            },
            "first": self.first,
            "batch": self.batch,
            "budget": self.budget,
            "test_share": self.test_share,
            **({"num_test": simulation.num_test} if own_images else {}),
            **({"task": self.task} if self.task == "classification" and not simulation.one_by_one else {}),
            # Runs that do not go side by side are the same with more of them.
            **({} if simulation.one_by_one else {"seeds": self.seeds}),
        }

    def _instead(self, data: str) -> list[str]:
        """Options that stand for modules."""
        return sorted(_INSTEAD_FOR_IMAGES if self.data[data].of_images else _INSTEAD)

    def simulation(self, data: str, folder: Path | None, device: str, workers: int) -> Simulation:
        """Load the data and make the model."""
        source = self.data[data]
        if source.of_images:
            return self._on_images(data, folder, device)
        table = load_table(source.table, folder, source.target)
        classes = self.task == "classification"
        if table.classes and not classes:
            raise InputError(
                f"column {table.target!r} of {source.table} holds words; to predict classes, write "
                "task = 'classification' at the top of the experiment's file"
            )
        options = self.options(data)
        if "widths" in options:
            widths = options.pop("widths")
            if not isinstance(widths, list) or not all(isinstance(width, int) for width in widths):
                raise InputError(f"widths is {widths!r}, expected a list of whole numbers such as [30, 30]")
            options["network"] = partial(MLP, widths=tuple(widths))
        model = (CLASSIFIERS if classes else MODELS)[self.kind](**options, device=device, progress=False)
        return Simulation(
            table.x,
            table.y.astype(int) if table.classes else table.y,
            model,
            first=len(table.x) - round(self.test_share * len(table.x)) if self.first == "all" else self.first,
            batch=self.batch,
            budget=self.budget,
            test_share=self.test_share,
            workers=workers,
        )

    def _on_images(self, data: str, folder: Path | None, device: str) -> Simulation:
        images = load_images(self.data[data].table, folder)
        options = self.options(data)
        width, padding, flip = (options.pop(name, None) for name in ("width", "padding", "flip"))
        options["network"] = partial(ResNet18, width=64 if width is None else width)
        if padding or flip:
            options["augment"] = Augment(padding or 0, bool(flip))
        return Simulation(
            # Bytes, which all fit on a GPU.
            torch.from_numpy(np.concatenate([images.x, images.test_x])).to(device),
            np.concatenate([images.y, images.test_y]),
            IMAGE_MODELS[self.kind](**options, device=device, progress=False),
            first=len(images.y) if self.first == "all" else self.first,
            batch=self.batch,
            budget=self.budget,
            num_test=len(images.test_y),
        )


def _by_name(data: Any) -> dict[str, dict[str, Any]]:
    """``data = "yacht"``, a list of names, or tables ``[data.yacht]`` with options."""
    if isinstance(data, str):
        return {data: {}}
    return {name: {} for name in data} if isinstance(data, list) else dict(data)


def _check_kinds(described: Mapping[str, Any]) -> None:
    """Raise where a value is of another kind than its key wants."""
    for name in ("data", "methods"):
        value = described.get(name, [])
        good = isinstance(value, str) or (
            isinstance(value, list) and all(isinstance(each, str) for each in value)
        )
        if not good and not (name == "data" and isinstance(value, dict)):
            raise InputError(f"{name} is {value!r}, expected a name or a list of names")
    tables = {"model": described.get("model", {}), "method": described.get("method", {})}
    for name in ("data", "method"):
        inner = described.get(name, {})
        tables |= {f"{name}.{key}": value for key, value in inner.items()} if isinstance(inner, dict) else {}
    for name, value in tables.items():
        if not isinstance(value, dict):
            raise InputError(f"{name} is {value!r}, expected a table: options below a line [{name}]")


def _check_values(model: Mapping[str, Any]) -> None:
    """Raise where an option that stands for a module is of another kind than the module wants."""
    for name, least in (("width", 1), ("padding", 0)):
        check_integer(model.get(name, least), least, f"[model] {name}")
    check_switch(model.get("flip", True), "[model] flip")


def _check_words(words: Iterable[str], known: set[str], where: str) -> None:
    for word in words:
        if word not in known:
            near = difflib.get_close_matches(str(word), sorted(known), n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(known))}"
            raise InputError(f"{where}: {word!r} is not known; {hint}")
