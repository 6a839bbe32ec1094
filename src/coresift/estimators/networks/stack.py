"""Compute S networks of one shape as one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coresift import limits
from coresift.errors import InputError
from coresift.estimators.networks.layers import is_frozen
from coresift.posteriors.network import rows_per_pass


class Stack:
    """The parameters of S networks side by side, and their joint forward pass.

    A network with a method ``stacked`` (see `MLP`) is computed by it; any other `nn.Module` through
    `torch.vmap`, or one by one if it has batch norm and the sets differ in size.

    Parameters
    ----------
    networks : S modules with the same layers, which the stack takes over: `member` writes the trained weights
        into them.

    Attributes
    ----------
    flat : (S, P) all parameters; an optimiser changes them in place.
    parameters : name -> (S, ...), views of ``flat`` that gradients are taken with respect to.
    buffers : name -> (S, ...).
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._networks = list(networks)
        self.template = copy.deepcopy(networks[0]).to(device=device, dtype=dtype)
        self._stacked: Any = getattr(self.template, "stacked", None)
        self._norms = list(_batch_norms(self.template, frozen=False).values())
        self._frozen_norms = list(_batch_norms(self.template, frozen=True).values())  # keep their statistics
        self.flat = _flat(networks).to(device, dtype)
        self.parameters = self._views(self.flat)
        self.buffers = {}
        for name in dict(networks[0].named_buffers()):
            value = torch.stack([network.get_buffer(name).detach() for network in networks])
            self.buffers[name] = value.to(device, dtype if value.is_floating_point() else value.dtype)

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        own = dict(self.template.named_parameters())
        parts = torch.split(flat, [value.numel() for value in own.values()], 1)
        views = [part.view(len(flat), *value.shape) for value, part in zip(own.values(), parts, strict=True)]
        return {name: view.detach().requires_grad_() for name, view in zip(own, views, strict=True)}

    @property
    def _state(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}

    def __len__(self) -> int:
        return len(self.flat)

    @property
    def recordable(self) -> bool:
        """Whether the forward pass is known to be a fixed sequence of kernels, and on a GPU."""
        return (self._stacked is not None or self.records_steps) and self.flat.is_cuda

    @property
    def records_steps(self) -> bool:
        """Whether each step is recorded by itself: for one network on a GPU that is marked ``recordable``."""
        marked = any(getattr(layer, "recordable", False) for layer in self.template.modules())
        return marked and len(self) == 1 and self.flat.is_cuda

    def trained(self) -> Tensor | None:
        """(P,) zero for entries of frozen parameters, one for the others; ``None`` if none is frozen."""
        flags = [value.requires_grad for value in self.template.parameters()]
        return None if all(flags) else self._mask(flags)

    def decays(self, name: str, gains: bool = False) -> bool:
        """Tell whether a parameter is a weight matrix or filters, or with ``gains`` the gain of a norm."""
        return self.parameters[name].ndim > 2 or (gains and name.endswith("weight"))

    def decayed(self, gains: bool = False) -> Tensor:
        """(P,) one for entries of trained parameters that decay, see `decays`; zero for all others."""
        own = self.template.named_parameters()
        return self._mask([value.requires_grad and self.decays(name, gains) for name, value in own])

    def _mask(self, flags: Sequence[bool]) -> Tensor:
        """(P,) each parameter's flag, as a number, for all of its entries."""
        counts = torch.tensor([value[0].numel() for value in self.parameters.values()])
        return torch.tensor(flags).repeat_interleave(counts).to(self.flat)

    @torch.no_grad()
    def settle(self, x: Tensor, rows: Tensor | None = None, steps: Sequence[int] = ()) -> None:
        """Set batch norm's statistics for evaluation to those of the labelled set.

        A network with a method ``stacked`` does this always. Any other keeps its running statistics, unless
        it made so few ``steps`` (S,) that these are still dominated by their initial values.
        """
        if self._stacked is not None:
            self._stacked(self._state, x, rows, settle=True)
            return
        for position, made in enumerate(steps if self._norms else ()):
            own = x[position] if rows is None else x[position, rows[position] > 0]
            if 0 < made < limits.FEW_STEPS and len(own) > 1:
                self._settle_one(position, own)

    def _settle_one(self, position: int, x: Tensor) -> None:
        """Compute the statistics of network ``position`` from its rows (n, ...), without noise."""
        network = copy.deepcopy(self.template).eval()
        state = {name: value[position] for name, value in self._state.items()}
        for name, layer in _batch_norms(network, frozen=False).items():
            layer.train()
            layer.momentum = None  # the plain mean over the parts
            if layer.num_batches_tracked is not None:
                state[f"{name}.num_batches_tracked"].zero_()
        # Batch norm needs at least two rows.
        for part in x.tensor_split(max(1, len(x) // max(2, rows_per_pass(x.shape[1:])))):
            functional_call(network, state, (part,))

    def __call__(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Training-mode outputs: (S, n, ...) -> (S, n, ...); ``rows`` as in `MLP.stacked`."""
        self._train()
        state = self._state
        if self._stacked is not None:
            outputs: Tensor = self._stacked(state, x, rows)
            return outputs
        if rows is not None and (self._norms or self._frozen_norms):
            return self._one_by_one(state, x, (rows > 0).sum(1).tolist())
        if len(self) == 1:
            # Unlike the gradient of an indexed entry, that of a squeeze is a view.
            single = {name: value.squeeze(0) for name, value in state.items()}
            return self._call(single, x.squeeze(0)).unsqueeze(0)
        together: Tensor = torch.vmap(self._call, randomness="different")(state, x)
        return together

    def _call(self, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self.template, dict(state), (x,))
        return outputs

    def _one_by_one(self, state: Mapping[str, Tensor], x: Tensor, counts: Sequence[int]) -> Tensor:
        """Compute each network on its real rows alone, since padding would enter the statistics."""
        outputs = []
        for position, count in enumerate(counts):
            self._train(count > 1)  # a single row has no variance: evaluation mode
            own = {name: value[position] for name, value in state.items()}
            outputs.append(self._call(own, x[position, : max(count, 1)]))
        # Pad with ones: the gradient at a feature of zero can be nan, and a weight of zero would keep it nan.
        full = outputs[0].new_ones(x.shape[1], *outputs[0].shape[1:])
        return nn.utils.rnn.pad_sequence([*outputs, full], True, 1.0)[:-1]

    def _train(self, mode: bool = True) -> None:
        self.template.train(mode)
        for layer in self._frozen_norms:
            layer.eval()

    def cpu(self) -> None:
        """Move to the CPU, all networks in one transfer."""
        self.flat = self.flat.cpu()
        self.parameters = self._views(self.flat)
        self.buffers = {name: value.cpu() for name, value in self.buffers.items()}

    def member(self, position: int) -> nn.Module:
        """Return network ``position`` by itself, in evaluation mode."""
        network = self._networks[position].to(self.flat)
        state = {name: value[position].detach() for name, value in self._state.items()}
        network.load_state_dict(state, strict=False)
        return network.eval()


def _batch_norms(network: nn.Module, frozen: bool) -> dict[str, Any]:
    layers = network.named_modules()
    norms = {name: layer for name, layer in layers if isinstance(layer, nn.modules.batchnorm._BatchNorm)}
    return {name: layer for name, layer in norms.items() if is_frozen(layer) == frozen}


def _flat(networks: Sequence[nn.Module]) -> Tensor:
    """(S, P) the parameters of each network, one after the other."""
    parameters = [[value.detach().flatten() for value in network.parameters()] for network in networks]
    rows = [torch.cat([torch.zeros(0), *own]) for own in parameters]
    if len({len(row) for row in rows}) > 1:
        raise InputError("the networks of a stack must have the same layers")
    return torch.stack(rows)
