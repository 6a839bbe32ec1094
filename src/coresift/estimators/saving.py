"""Save fitted estimators: weights with safetensors, everything else as JSON, and no pickle."""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from coresift.atomic import replacing, write_text
from coresift.checks import check_integer
from coresift.errors import InputError, shown

# The version of the format. Change it with every change of what the files hold.
FORMAT = 2
# Options that hold modules, which are code: ``augment`` is only needed to train again.
_MODULES = ("network", "augment")
# What a fit has learned, as tensors and as facts for JSON.
State: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]


class Savable(BaseEstimator):  # type: ignore[misc]
    """An estimator that is saved to a folder, and loaded.

    A subclass says what it has learned as tensors and JSON, and how to restore it.
    """

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder, as ``model.json`` and the file of weights that it names.

        A model in the folder is replaced as a whole: if the process is killed meanwhile, the folder holds
        the old model or the new one.
        """
        from safetensors.torch import save

        check_is_fitted(self)
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        tensors, facts = self._fitted_state()
        weights = save({name: value.contiguous().cpu() for name, value in tensors.items()})
        # The name depends on the content, so the weights of the old model.json are not overwritten.
        described = {**self._described(), "facts": facts, "weights": _weights_name(weights)}
        text = json.dumps(described, indent=2, default=lambda value: value.item()) + "\n"
        old = described["weights"]
        with suppress(OSError, ValueError, AttributeError):  # no old model, or a damaged one
            old = _weights_file(json.loads((path / "model.json").read_text(encoding="utf-8")))
        with replacing(path / described["weights"]) as file:
            file.write(weights)
        write_text(path / "model.json", text)
        if old != described["weights"]:
            (path / old).unlink(missing_ok=True)

    def _described(self) -> dict[str, Any]:
        options: dict[str, Any] = self.get_params(deep=False) | {"device": str(self.device)}
        if not isinstance(self.random_state, Integral):  # a generator is only needed to train again
            options["random_state"] = None
        return {
            "format": FORMAT,
            "class": type(self).__name__,
            "options": {name: value for name, value in options.items() if name not in _MODULES},
            "own_network": getattr(self, "network", None) is not None,
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", [])),
            "targets": self._described_targets(),
        }

    @classmethod
    def load(cls, folder: str | Path, network: Any = None, device: str | None = None) -> Self:
        """Read an estimator; one with its own network needs that network again, for its layers.

        ``device`` is where its tensors go, by default where it was fitted.
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
            reason = (
                f"it has no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
            )
            own = "" if network is None else ", and whether network= is what it was fitted with"
            raise InputError(
                f"cannot load the model in {path}: {' '.join(reason.split())[:200]}; "
                f"check that its files are complete{own}, or save it again"
            ) from error

    @classmethod
    def _read(cls, path: Path, network: Any, device: str | None) -> Self:
        described = json.loads((path / "model.json").read_text(encoding="utf-8"))
        cls._check_kind(described, path, network)
        given = {"network": network, "device": device}
        options = described["options"] | {name: value for name, value in given.items() if value is not None}
        estimator = cls(**options)
        estimator._check_options()
        tensors = _read_weights(path / _weights_file(described), str(estimator.device))
        estimator._restore_columns(described["n_features_in"], described["feature_names_in"], tensors)
        estimator._restore_targets(described["targets"])
        estimator._restore(tensors, described["facts"])
        estimator._check_outputs()
        return estimator

    @classmethod
    def _check_kind(cls, described: Mapping[str, Any], path: Path, network: Any) -> None:
        """Raise if a description is not for this class, this version of the format and these arguments."""
        name, version = described["class"], described.get("format")
        if version != FORMAT:
            raise InputError(
                f"the model in {path} has format {shown(version)}, but this version of coresift reads format "
                f"{FORMAT}; fit the model and save it again"
            )
        if name != cls.__name__:
            raise InputError(f"{path} holds a {name}, not a {cls.__name__}")
        if described["own_network"] and network is None:
            raise InputError(f"the model in {path} was fitted with its own network; pass network=")

    def _restore_columns(self, number: int, names: list[str], tensors: Mapping[str, Tensor]) -> None:
        """Set the columns' number and names; raise if the weights are for others: a network may be huge."""
        self.n_features_in_ = check_integer(number, 1, "n_features_in")
        means = [value for name, value in tensors.items() if re.fullmatch(r"\w+\.(\d+\.)?0\.mean", name)]
        if getattr(self, "network", None) is None and any(mean.shape[-1] != number for mean in means):
            raise ValueError(f"n_features_in is {number}, but the weights are for others")
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)
            if self.feature_names_in_.shape != (number,):
                raise ValueError(f"feature_names_in does not hold {number} names")

    @abstractmethod
    def _described_targets(self) -> Any:
        """What was learned about the form of the targets, for JSON."""

    @abstractmethod
    def _restore_targets(self, described: Any) -> None:
        """Set what `_described_targets` describes."""

    @abstractmethod
    def _fitted_state(self) -> State:
        """Tensors, and facts for JSON, from which `_restore` restores the fit."""

    def _check_outputs(self) -> None:
        """Raise if a restored model predicts other targets than those it is said to have learned."""

    @abstractmethod
    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Set what ``fit`` sets."""


def network_tensors(posterior: Any) -> dict[str, Tensor]:
    """Return the tensors of a posterior's network, by the names that `substate` undoes."""
    return {f"network.{name}": value for name, value in posterior.network.state_dict().items()}


def head_tensors(head: Any) -> dict[str, Tensor]:
    """Return the tensors of a last layer's posterior, a dataclass, by the names that `substate` undoes."""
    values = {f"head.{field.name}": getattr(head, field.name) for field in fields(head)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _read_weights(file: Path, device: str) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if not file.is_file():
        raise InputError(f"{file.parent} holds only a part of a model: it has no {file.name}; save it again")
    if file.name != _weights_name(file.read_bytes()):
        raise InputError(f"{file} is damaged: it does not hold what was saved; save it again")
    tensors: dict[str, Tensor] = load_file(file, device=device)
    if not all(bool(value.isfinite().all()) for value in tensors.values()):
        raise ValueError("some weights are nan or infinite")
    return tensors


def _weights_name(content: bytes) -> str:
    """Return the name of a file of weights, with the start of its SHA-256, so that damage is noticed."""
    return f"weights-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"


def _weights_file(described: Mapping[str, Any]) -> str:
    """Return the name of the file of weights that belongs to a ``model.json``."""
    name = str(described.get("weights"))
    if not re.fullmatch(r"weights-[0-9a-f]{16}\.safetensors", name):
        raise InputError(f"model.json is damaged: weights is {name!r}; save the model again")
    return name
