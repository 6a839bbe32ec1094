"""What estimators built on networks share: fitting one or many at once, and saving."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.distributions import Categorical

from coresift.atomic import replacing, write_text
from coresift.checks import check_integer, check_switch
from coresift.errors import shown
from coresift.estimators.networks import MLP, Trainer
from coresift.estimators.networks.images import Precision, Prepared
from coresift.estimators.networks.layers import Standardise
from coresift.posteriors.network import outputs_of
from coresift.threads import enough_threads
from coresift.types import InputError

# Labelled rows that are looked at to see whether training went well, and the share of features that should.
_LOOKED_AT, _LEAST_ALIVE = 1000, 0.1

# The file of weights of models that were saved before model.json named one.
_UNNAMED = "weights.safetensors"


class NetworkEstimator(BaseEstimator):  # type: ignore[misc]
    """A scikit-learn estimator around networks that are trained as a stack.

    A subclass says how to train S of itself together (`_fit_together`) and sets ``posterior_``, which the
    spaces and scores understand. ``fit`` is the case S = 1.
    """

    network: nn.Module | Callable[[int], nn.Module] | None
    epochs: int
    learning_rate: float
    batch_size: int | None
    weight_decay: float
    random_state: int | None
    device: str
    progress: bool
    posterior_: Any  # a Posterior, more exactly known to each subclass

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows ``X`` and targets ``y``."""
        self.__dict__.pop("posterior_", None)  # should this fit fail, the last one is not taken for it
        self._check_options()
        labelled = self._validated(X, y)
        with enough_threads(labelled[0].numel()):
            self._fit_together([self], [labelled])
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "posterior_")

    def fit_many(self, sets: Sequence[tuple[Any, Any]], seeds: Sequence[int]) -> list[Self]:
        """Train one copy on each labelled set (X, y), with its own seed, all as one computation; those with
        ``least_steps`` only beside others that need as many epochs, and on images of bytes one after the
        other, since one such network keeps a device busy.

        Each ends as if it were fitted alone with that ``random_state``, but for layers that draw noise of
        their own, such as dropout; the sets may differ in size.
        """
        if len(sets) != len(seeds) or len(sets) == 0:
            raise InputError(f"{len(sets)} labelled sets and {len(seeds)} seeds do not go together")
        self._check_options()
        copies = [clone(self).set_params(random_state=seed) for seed in seeds]
        checked = [one._validated(X, y) for one, (X, y) in zip(copies, sets, strict=True)]
        shapes = sorted({(tuple(x.shape[1:]), tuple(y.shape[1:])) for x, y in checked})
        if len(shapes) > 1:
            raise InputError(f"the labelled sets hold rows and targets of several shapes: {shapes}")
        targets, trainer = self._shared_targets(copies, [y for _, y in checked]), self._trainer()
        groups: dict[int, list[int]] = {}
        for position, (x, _) in enumerate(checked):
            alike = position if x.dtype == torch.uint8 else trainer.num_epochs(len(x))
            groups.setdefault(alike, []).append(position)
        with enough_threads(sum(x.numel() for x, _ in checked)):
            for group in groups.values():
                self._fit_together([copies[n] for n in group], [(checked[n][0], targets[n]) for n in group])
        return copies

    @staticmethod
    def _shared_targets(members: Sequence[Any], targets: Sequence[Tensor]) -> Sequence[Tensor]:
        """Targets as all estimators understand them."""
        return targets

    def _validated(self, X: Any, y: Any, **checks: Any) -> tuple[Tensor, Tensor]:
        """The labelled set as tensors, checked; sets ``n_features_in_`` and what is known of ``y``."""
        images = self._images(X, least=2)
        if images is not None:
            targets = _one_line(validate_data, self, "no_validation", y, **checks)
            _one_line(check_consistent_length, images, targets)
            self.n_features_in_ = images.shape[1]
            return images, self._learn_targets(targets)
        rows, targets = _one_line(
            validate_data,
            self,
            X,
            y,
            dtype=np.float64,  # until it is standardised: float32 would round a large offset away
            ensure_2d=self._tabular,
            allow_nd=not self._tabular,
            ensure_min_samples=2,
            **checks,
        )
        if rows.ndim < 2:
            raise InputError(f"X has shape {rows.shape}, expected rows of columns or of channels")
        self.n_features_in_ = rows.shape[1]  # columns or channels
        return torch.as_tensor(np.array(rows)), self._learn_targets(targets)

    @abstractmethod
    def _learn_targets(self, targets: Any) -> Tensor:
        """Targets as numbers to train on; remembers what `predict` needs to turn them back."""

    @abstractmethod
    def _described_targets(self) -> Any:
        """What was remembered of the targets, for JSON."""

    @abstractmethod
    def _restore_targets(self, described: Any) -> None:
        """Remember the same."""

    @abstractmethod
    def _expected_outputs(self) -> Any:
        """How many classes are predicted, or the event shape of predicted numbers."""

    @staticmethod
    @abstractmethod
    def _fit_together(members: Sequence[Any], sets: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Train estimators of equal options together, and set what ``fit`` sets."""

    def _rows(self, X: Any) -> Tensor:
        """Rows to predict for, checked against those that were fitted."""
        check_is_fitted(self)
        images = self._images(X, least=1)
        rows: Any = (
            images
            if images is not None
            else _one_line(
                validate_data,
                self,
                X,
                reset=False,
                dtype=np.float64,
                ensure_2d=self._tabular,
                allow_nd=not self._tabular,
            )
        )
        if rows.ndim < 2 or rows.shape[1] != self.n_features_in_:
            raise InputError(
                f"X has shape {tuple(rows.shape)}, but was fitted with (any, {self.n_features_in_}, ...)"
            )
        return rows if images is not None else torch.as_tensor(np.array(rows))

    def _images(self, X: Any, least: int) -> Tensor | None:
        """Images of bytes (n, channels, height, width), as they are and where they are; else ``None``.

        Raises where there are fewer than ``least``, or where rows of any kind are not in the form they need.
        """
        if not isinstance(X, Tensor | np.ndarray):
            return None
        of_bytes = X.dtype in (torch.uint8, np.uint8)
        _check_form(tuple(X.shape), self._tabular, of_bytes)
        if self._tabular or X.ndim != 4 or not of_bytes:
            return None
        if len(X) < least:
            raise InputError(f"X holds {len(X)} images, expected at least {least}")
        # torch shares memory only with what it may write to, and with forward strides.
        return torch.as_tensor(np.require(X, requirements=["C", "W"]) if isinstance(X, np.ndarray) else X)

    @property
    def _tabular(self) -> bool:
        """Whether rows are vectors; a network of one's own may take images."""
        return self.network is None

    def _random_state(self) -> np.random.RandomState:
        try:
            state: np.random.RandomState = check_random_state(self.random_state)
            return state
        except ValueError:
            raise InputError(
                f"random_state is {shown(self.random_state)}, expected a whole number from 0 to 2**32 - 1, "
                "a RandomState of NumPy or None"
            ) from None

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(int(self._random_state().randint(2**31)))

    def _check_options(self) -> None:
        """Raise where an option makes no sense; subclasses add their own."""
        self._check_option("epochs", Integral, 0)
        self._check_option("learning_rate", Real, 0)
        self._check_option("weight_decay", Real, 0)
        if self.batch_size is not None:
            self._check_option("batch_size", Integral, 1)
        if hasattr(self, "least_steps"):
            self._check_option("least_steps", Integral, 0)
        for name, known in (("schedule", ("cosine", "one-cycle")), ("precision", ("float32", "bfloat16"))):
            if hasattr(self, name):
                self._check_choice(name, known)
        check_switch(self.progress, "progress")
        for name in ("network", "augment"):
            value = getattr(self, name, None)
            if not (value is None or isinstance(value, nn.Module) or (name == "network" and callable(value))):
                what = "a torch module" + (", or a function that makes one" if name == "network" else "")
                raise InputError(f"{name} is {shown(value)}, expected {what}")
        self._random_state()
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError, ValueError):
            raise InputError(
                f"device is {shown(str(self.device))}, but torch finds no such device here; try 'cpu'"
            ) from None

    def _check_choice(self, name: str, known: tuple[str, str]) -> None:
        value = getattr(self, name)
        if not isinstance(value, str) or value not in known:
            raise InputError(f"{name} is {shown(value)}, expected {known[0]!r} or {known[1]!r}")

    def _check_option(self, name: str, kind: Any, least: float) -> None:
        value: Any = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < math.inf:
            wanted = "an integer" if kind is Integral else "a number"
            raise InputError(f"{name} is {shown(value)}, expected {wanted} of at least {least}")

    def _trainer(self) -> Trainer:
        given = {name: getattr(self, name) for name in ("schedule", "least_steps") if hasattr(self, name)}
        return Trainer(
            epochs=self.epochs,
            learning_rate=float(self.learning_rate),
            batch_size=self.batch_size,
            weight_decay=float(self.weight_decay),
            progress=self.progress,
            **given,
        )

    def _fresh_extractor(self, x: Tensor, scale: Standardise, generator: torch.Generator) -> nn.Module:
        """A feature extractor with new weights for rows like ``x``, as `_before_training` gives them."""
        extractor = self._fresh_network(x.shape[1], generator)
        augment: nn.Module | None = getattr(self, "augment", None)
        precision: Precision = getattr(self, "precision", "float32")
        raw = self._stay_raw(x)
        if not raw and augment is None and precision == "float32":
            return extractor
        before = [copy.deepcopy(augment)] if augment is not None else []
        if raw:
            # With the network it is trained in single precision, which is no loss to what evaluates bytes.
            before.append(scale if x.dtype == torch.uint8 else copy.deepcopy(scale))
        return Prepared(nn.Sequential(*before), extractor, precision)

    def _before_training(self, x: Tensor, scale: Standardise) -> Tensor:
        """Rows to train on: standardised, but for images that are so as they are used."""
        return x if self._stay_raw(x) else scale(x)

    def _stay_raw(self, x: Tensor) -> bool:
        """Whether rows are standardised only as they are used: bytes, to save memory, and images that
        ``augment`` is to see as they are, with black borders and colours in their own range.
        """
        return x.dtype == torch.uint8 or (x.ndim == 4 and getattr(self, "augment", None) is not None)

    def _fresh_network(self, inputs: int, generator: torch.Generator) -> nn.Module:
        """A feature extractor with new weights, drawn from ``generator``."""
        with seeded(generator):
            if self.network is None:
                return MLP(inputs)
            # A copy in any case: a function may return the same module each time.
            if not isinstance(self.network, nn.Module):
                return copy.deepcopy(self.network(inputs))
            network = copy.deepcopy(self.network)
            for name, layer in network.named_modules():
                own = list(layer.parameters(recurse=False))
                if own and not any(value.requires_grad for value in own):
                    continue  # frozen: what it has learned elsewhere is kept
                reset: Any = getattr(layer, "reset_parameters", None)
                if reset is not None:
                    reset()
                elif own:
                    raise InputError(
                        f"layer {name!r} of the network, a {type(layer).__name__}, does not say how to draw "
                        "its weights anew; pass a function that makes the network instead"
                    )
            return network

    def _num_features(self, extractor: nn.Module, x: Tensor) -> int:
        """How many features the network makes of rows like ``x`` (n, ...)."""
        with torch.no_grad():
            features = extractor.to(x.device).eval()(x[:1]).cpu()
            extractor.cpu()
        if features.ndim != 2:
            raise InputError(
                f"the network turns one row into shape {tuple(features.shape)}, expected (1, features); "
                "end it with pooling or nn.Flatten()"
            )
        return int(features.shape[1])

    def _warn_of_dead_units(self, networks: Sequence[nn.Module], x: Tensor) -> None:
        """Too long a step can move a ReLU to where it is zero for every row, and it never comes back.

        Each of ``networks``, in evaluation mode, makes features of rows like ``x`` (n, ...).
        """
        x = x[:_LOOKED_AT]
        each = [outputs_of(network, x) for network in networks]
        alive, num = [int((features != features[:1]).any(0).sum()) for features in each], each[0].shape[1]
        bad = [count for count in alive if count < _LEAST_ALIVE * num]
        if bad and bool((x != x[:1]).any()):
            few = f"only {min(bad)} of the network's {num} features differ"
            if len(networks) > 1:
                few = (
                    f"in {len(bad)} of {len(networks)} networks as few as {min(bad)} of {num} features differ"
                )
            warnings.warn(
                f"{few} from row to row: the others have died in training, and predictions will be poor; "
                "try a smaller learning_rate",
                stacklevel=4,
            )

    # Saving: weights with safetensors, everything else as JSON, and no pickle anywhere.

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder, as ``model.json`` and the file of weights that it names.

        A model that is there is replaced as a whole: if the process is killed meanwhile, the folder holds
        the old model or the new one.
        """
        from safetensors.torch import save

        check_is_fitted(self)
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        tensors, facts = self._fitted_state()
        # A module is code; ``augment`` is of no use but to train anew.
        modules = ("network", "augment")
        options = {name: value for name, value in self.get_params(deep=False).items() if name not in modules}
        options["device"] = str(self.device)
        if not isinstance(self.random_state, Integral):  # a generator, which is of no use but to train anew
            options["random_state"] = None
        described = {
            "class": type(self).__name__,
            "options": options,
            "own_network": self.network is not None,
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", [])),
            "targets": self._described_targets(),
            "facts": facts,
        }
        weights = save({name: value.contiguous().cpu() for name, value in tensors.items()})
        # Named by what it holds, so that it never takes the place of the weights of the old model.json.
        described["weights"] = _weights_name(weights)
        text = json.dumps(described, indent=2, default=lambda value: value.item()) + "\n"
        old = None
        with suppress(OSError, ValueError, AttributeError):  # no old model, or a damaged one
            old = _weights_file(json.loads((path / "model.json").read_text(encoding="utf-8")))
        with replacing(path / described["weights"]) as file:
            file.write(weights)
        write_text(path / "model.json", text)
        if old is not None and old != described["weights"]:
            (path / old).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | Path, network: Any = None, device: str | None = None) -> Self:
        """Read an estimator back; one with a network of its own needs that network again, for its layers.

        ``device`` is where it is to live, by default where it was fitted.
        """
        if not isinstance(folder, str | PathLike):
            raise InputError(f"folder is {shown(folder)}, expected the path of a folder")
        path = Path(folder)
        if not (path / "model.json").is_file():
            raise InputError(f"{path} holds no saved model: it has no model.json")
        try:
            return cls._read(path, network, device)
        except InputError:
            raise
        except Exception as error:  # a damaged file can break anything that reads it
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
            own = "" if network is None else ", and whether network= is what it was fitted with"
            raise InputError(
                f"cannot load the model in {path}: {' '.join(why.split())[:200]}; "
                f"check that its files are whole{own}, or save it again"
            ) from error

    @classmethod
    def _read(cls, path: Path, network: Any, device: str | None) -> Self:
        from safetensors.torch import load_file

        described = json.loads((path / "model.json").read_text(encoding="utf-8"))
        if described["class"] != cls.__name__:
            raise InputError(f"{path} holds a {described['class']}, not a {cls.__name__}")
        if described["own_network"] and network is None:
            raise InputError(f"the model in {path} was fitted with its own network; pass network=")
        estimator = cls(network=network, **described["options"])
        if device is not None:
            estimator.set_params(device=device)
        estimator._check_options()
        estimator.n_features_in_ = check_integer(described["n_features_in"], 1, "n_features_in")
        if described["feature_names_in"]:
            estimator.feature_names_in_ = np.array(described["feature_names_in"], dtype=object)
            if estimator.feature_names_in_.shape != (estimator.n_features_in_,):
                raise ValueError(f"feature_names_in does not hold {estimator.n_features_in_} names")
        estimator._restore_targets(described["targets"])
        weights = path / _weights_file(described)
        if not weights.is_file():
            raise InputError(f"{path} holds only a part of a model: it has no {weights.name}; save it again")
        if weights.name not in (_UNNAMED, _weights_name(weights.read_bytes())):
            raise InputError(f"{weights} is damaged: it does not hold what was saved; save it again")
        tensors = load_file(weights, device=str(estimator.device))
        if not all(bool(value.isfinite().all()) for value in tensors.values()):
            raise ValueError("some weights are nan or infinite")
        estimator._check_inputs(tensors)
        estimator._restore(tensors, described["facts"])
        estimator._check_outputs()
        return estimator

    def _check_inputs(self, tensors: dict[str, Tensor]) -> None:
        """Raise where weights are for another number of columns: a network for that many may be enormous."""
        if self._tabular:
            means = [value for name, value in tensors.items() if re.fullmatch(r"\w+\.(\d+\.)?0\.mean", name)]
            if any(value.shape[-1] != self.n_features_in_ for value in means):
                raise ValueError(f"n_features_in is {self.n_features_in_}, but the weights are for others")

    def _check_outputs(self) -> None:
        """Raise where the posterior predicts other targets than those it is said to have learned."""
        if not self._tabular:
            return  # the shape of a row is not known
        row = torch.zeros(1, self.n_features_in_, dtype=torch.float64)
        theta = self.posterior_.sample(2 * int(getattr(self, "num_members", 1)), torch.Generator())
        predicted = self.posterior_.conditional(row, theta)
        seen = predicted.probs.shape[-1] if isinstance(predicted, Categorical) else predicted.event_shape
        if seen != self._expected_outputs():
            raise ValueError("the weights are for other targets than those described")

    @abstractmethod
    def _fitted_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, and facts that JSON can hold, from which `_restore` rebuilds the fit."""

    @abstractmethod
    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Set what ``fit`` sets."""


class NetworkRegressor(RegressorMixin, NetworkEstimator):  # type: ignore[misc]
    """A regressor of one or several outputs."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Expected targets, and with ``return_std`` the standard deviations of new ones, noise included."""
        rows = self._rows(X)
        with enough_threads(rows.numel()):
            predictive = self.posterior_.predictive(rows)
            mean, deviation = (
                value.double().cpu().numpy().reshape(len(rows), *self._target_shape)
                for value in (predictive.mean, predictive.stddev)
            )
        return (mean, deviation) if return_std else mean

    def _validated(self, X: Any, y: Any, **checks: Any) -> tuple[Tensor, Tensor]:
        return super()._validated(X, y, multi_output=True, y_numeric=True, **checks)

    def _learn_targets(self, targets: Any) -> Tensor:
        """(n, O)"""
        self._target_shape = np.shape(targets)[1:]
        numbers = _one_line(np.array, targets, dtype=np.float64)
        return torch.as_tensor(numbers).view(len(targets), -1)

    def _described_targets(self) -> list[int]:
        return list(self._target_shape)

    def _restore_targets(self, described: list[int]) -> None:
        self._target_shape = tuple(check_integer(size, 1, "a number of targets") for size in described)

    def _expected_outputs(self) -> torch.Size:
        num = math.prod(self._target_shape)
        return torch.Size([num] if num > 1 else [])


class NetworkClassifier(ClassifierMixin, NetworkEstimator):  # type: ignore[misc]
    """A classifier; ``classes_`` are the labels, in the order of ``predict_proba``'s columns."""

    def predict_proba(self, X: Any) -> Any:
        """(n, C) class probabilities, in the order of ``classes_``."""
        rows = self._rows(X)
        with enough_threads(rows.numel()):
            return self.posterior_.predictive(rows).probs.cpu().numpy()

    def predict(self, X: Any) -> Any:
        """(n,) the most likely labels."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]

    def _learn_targets(self, targets: Any) -> Tensor:
        """(n,) positions in ``classes_``."""
        with warnings.catch_warnings():
            # Many classes and few labels are usual here, and no sign of a regression problem.
            warnings.filterwarnings("ignore", "The number of unique classes is greater", UserWarning)
            _one_line(check_classification_targets, targets)
        self.classes_, codes = np.unique(targets, return_inverse=True)
        return torch.as_tensor(codes)

    @staticmethod
    def _shared_targets(members: Sequence[Any], codes: Sequence[Tensor]) -> list[Tensor]:
        """Give all estimators the classes of all sets, since a small one may lack some; recode labels."""
        classes = np.unique(np.concatenate([one.classes_ for one in members]))
        places = [torch.as_tensor(np.searchsorted(classes, one.classes_)) for one in members]
        for one in members:
            one.classes_ = classes
        return [place[y] for place, y in zip(places, codes, strict=True)]

    def _described_targets(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "type": self.classes_.dtype.str}

    def _restore_targets(self, described: dict[str, Any]) -> None:
        self.classes_ = np.array(described["classes"], dtype=described["type"])
        # As `fit` has them: whole, distinct and in order.
        if self.classes_.tolist() != described["classes"] or not np.array_equal(
            self.classes_, np.unique(self.classes_)
        ):
            raise ValueError(f"classes of type {described['type']} do not fit {described['classes']}")

    def _expected_outputs(self) -> int:
        return len(self.classes_)


def _one_line(check: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """``check(...)`` by scikit-learn, with its errors as ours, in one line."""
    try:
        return check(*arguments, **options)
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from None


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Lend torch's global generator, from which layers draw, a seed of ``generator``'s."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield


def _check_form(shape: tuple[int, ...], tabular: bool, of_bytes: bool) -> None:
    """Raise where rows look like images in a form that would be taken for something else."""
    if tabular and len(shape) > 2:
        raise InputError(
            f"X has shape {shape}, but without a network of their own rows are those of a table; "
            "for images (n, channels, height, width) pass network=ResNet18"
        )
    change = None
    if len(shape) == 3 and of_bytes and shape[1] > 4:
        change = "give grey images a channel, as X[:, None] does"
        if shape[0] in (1, 3, 4):
            change = f"one image alone is X[None]; to {change}"
    # Feature maps, of many channels and few pixels, are in order.
    if len(shape) == 4 and min(shape[1:3]) > 4 and shape[3] in (1, 3, 4):
        change = "bring the channels forward, as np.moveaxis(X, 3, 1) does"
    if change is not None:
        raise InputError(f"images have shape {shape}, expected (n, channels, height, width); {change}")


def _weights_name(content: bytes) -> str:
    """Return the name of a file of weights, with the start of its SHA-256: enough to notice damage."""
    return f"weights-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"


def _weights_file(described: Mapping[str, Any]) -> str:
    """Return the name of the file of weights that goes with the content of a ``model.json``."""
    name = str(described.get("weights", _UNNAMED))
    if name != _UNNAMED and not re.fullmatch(r"weights-[0-9a-f]{16}\.safetensors", name):
        raise InputError(f"model.json is damaged: weights is {name!r}; save the model again")
    return name
