"""What an experiment is: a short TOML file that names what differs from the paper's protocol."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from coresift.data import Table, checksum, load_table
from coresift.loop import Method, Simulation
from coresift.models import DropoutRegressor, EnsembleRegressor, LaplaceRegressor, NeuralLinearRegressor
from coresift.networks import MLP
from coresift.strategies import STRATEGIES
from coresift.types import InputError

MODELS: dict[str, type[Any]] = {
    "neural-linear": NeuralLinearRegressor,
    "ensemble": EnsembleRegressor,
    "dropout": DropoutRegressor,
    "laplace": LaplaceRegressor,
}
# The paper has no calibration.
_DEFAULTS: dict[str, dict[str, Any]] = {"neural-linear": {"calibration_folds": 0}}
# Said on the command line, by the runner or by ``widths``.
_NOT_OPTIONS = {"network", "device", "progress", "random_state"}


@dataclass(frozen=True)
class Source:
    """A table of an experiment, with the options of the model that it needs.

    Attributes
    ----------
    table : a name or a path, for `load_table`.
    target : the column to predict, in a file of one's own.
    model : options of the model, over those of the experiment.
    """

    table: str
    target: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """Methods to compare on tables.

    Attributes
    ----------
    data, methods : by the names they have in the results.
    kind : a name in `MODELS`.
    model : its options; instead of a ``network``, which TOML cannot hold, the ``widths`` of an `MLP`.
    seeds : how many runs of each method, with the seeds 0, 1, ...
    first, batch, budget, test_share : see `Simulation`.
    """

    data: Mapping[str, Source]
    methods: Mapping[str, Method]
    kind: str = "neural-linear"
    model: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 40
    first: int = 20
    batch: int = 10
    budget: int = 100
    test_share: float = 0.2

    def __post_init__(self) -> None:
        for name, least in (("seeds", 1), ("first", 2), ("batch", 1), ("budget", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value!r}, expected a whole number of at least {least}")
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
        numbers = {"seeds", "first", "batch", "budget", "test_share"}
        _check_words(described, {"data", "methods", "method", "model", *numbers}, str(path))
        model = dict(described.get("model", {}))
        kind = model.pop("kind", "neural-linear")
        _check_words([kind], set(MODELS), "model.kind")
        options = {*MODELS[kind]().get_params(), "widths"} - _NOT_OPTIONS
        _check_words(model, options, "[model]")
        data: dict[str, Source] = {}
        for name, source in _by_name(described.get("data", {})).items():
            _check_words(source, {"target", "model"}, f"[data.{name}]")
            _check_words(source.get("model", {}), options, f"[data.{name}] model")
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
        return cls(
            data, methods, kind, model, **{name: described[name] for name in numbers & described.keys()}
        )

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
        return {**_DEFAULTS.get(self.kind, {}), **self.model, **self.data[data].model}

    def settings(self, data: str, method: str, simulation: Simulation) -> dict[str, Any]:
        """All that decides the results of a method on a data set, for JSON."""
        given = simulation.model.get_params()
        return {
            "data": asdict(self.data[data]),
            "checksum": checksum(simulation.x, simulation.y),
            "method": asdict(self.methods[method]),
            # Defaults too: they may change from version to version.
            "model": {
                "kind": self.kind,
                "widths": self.options(data).get("widths"),
                **{name: value for name, value in given.items() if name not in _NOT_OPTIONS},
            },
            "first": self.first,
            "batch": self.batch,
            "budget": self.budget,
            "test_share": self.test_share,
            "seeds": self.seeds,
        }

    def simulation(self, data: str, folder: Path | None, device: str, workers: int) -> Simulation:
        """Load the table and make the model."""
        source = self.data[data]
        table: Table = load_table(source.table, folder, source.target)
        options = self.options(data)
        if "widths" in options:
            widths = options.pop("widths")
            if not isinstance(widths, list) or not all(isinstance(width, int) for width in widths):
                raise InputError(f"widths is {widths!r}, expected a list of whole numbers such as [30, 30]")
            options["network"] = partial(MLP, widths=tuple(widths))
        model = MODELS[self.kind](**options, device=device, progress=False)
        return Simulation(
            table.x,
            table.y,
            model,
            first=self.first,
            batch=self.batch,
            budget=self.budget,
            test_share=self.test_share,
            workers=workers,
        )


def _by_name(data: Any) -> dict[str, dict[str, Any]]:
    """``data = "yacht"``, a list of names, or tables ``[data.yacht]`` with options."""
    if isinstance(data, str):
        return {data: {}}
    return {name: {} for name in data} if isinstance(data, list) else dict(data)


def _check_words(words: Iterable[str], known: set[str], where: str) -> None:
    for word in words:
        if word not in known:
            near = difflib.get_close_matches(str(word), sorted(known), n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(known))}"
            raise InputError(f"{where}: {word!r} is not known; {hint}")
