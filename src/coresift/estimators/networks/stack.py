"""A stack: S networks of one shape, computed as one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coresift.posteriors.network import rows_per_pass
from coresift.types import InputError

# Running statistics of batch norm forget a tenth in each step: after so many, all but half a percent.
_FEW_STEPS = 50


class Stack:
    """The parameters of S networks side by side, and their joint forward pass.

    A network that brings a method ``stacked`` (see `MLP`) is computed by it; any other `nn.Module` through
    `torch.vmap`, or one by one where it has batch norm and sets differ in size.

    Parameters
    ----------
    networks : S modules with the same layers, each with its own weights. They are handed over: `member` puts
        the trained weights into them.

    Attributes
    ----------
    flat : (S, P) all parameters; what an optimiser changes, in place.
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
        # What a frozen batch norm knows was learned elsewhere: its statistics as well as its weights.
        self._norms: dict[str, Any] = {}
        self._frozen_norms: list[nn.Module] = []
        for name, layer in self.template.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                own = list(layer.parameters(recurse=False))
                if own and not any(value.requires_grad for value in own):
                    self._frozen_norms.append(layer)
                else:
                    self._norms[name] = layer
        named = [dict(network.named_parameters()) for network in networks]
        none = torch.zeros(0)
        rows = [
            torch.cat([none, *(value.detach().flatten() for value in values.values())]) for values in named
        ]
        if len({len(row) for row in rows}) > 1:
            raise InputError("the networks of a stack must have the same layers")
        self.flat = torch.stack(rows).to(device=device, dtype=dtype)
        self.parameters = self._views(self.flat)
        buffers = [dict(network.named_buffers()) for network in networks]
        self.buffers = {
            name: torch.stack([values[name].detach() for values in buffers]).to(device) for name in buffers[0]
        }
        self.buffers = {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in self.buffers.items()
        }

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        parameters: dict[str, Tensor] = {}
        start = 0
        for name, value in self.template.named_parameters():
            part = flat[:, start : start + value.numel()].view(len(flat), *value.shape)
            parameters[name] = part.detach().requires_grad_()
            start += value.numel()
        return parameters

    def __len__(self) -> int:
        return len(self.flat)

    @property
    def recordable(self) -> bool:
        """Whether the forward pass is known to be a fixed sequence of kernels, and on a GPU."""
        return (self._stacked is not None or self.records_steps) and self.flat.is_cuda

    @property
    def records_steps(self) -> bool:
        """Whether a step is long enough to be recorded by itself: one network, such as `ResNet18`, that says
        that it is ``recordable``, on a GPU.
        """
        says = any(getattr(layer, "recordable", False) for layer in self.template.modules())
        return says and len(self) == 1 and self.flat.is_cuda

    def trained(self) -> Tensor | None:
        """(P,) zero for entries of frozen parameters, one for the others; ``None`` where none is frozen."""
        kept = dict(self.template.named_parameters())
        if all(value.requires_grad for value in kept.values()):
            return None
        parts = [
            torch.full((value[0].numel(),), float(kept[name].requires_grad), dtype=self.flat.dtype)
            for name, value in self.parameters.items()
        ]
        return torch.cat(parts).to(self.flat.device)

    def decays(self, name: str, gains: bool = False) -> bool:
        """Whether a parameter is a weight matrix or filters, or with ``gains`` the gain of a norm."""
        return self.parameters[name].ndim > 2 or (gains and name.endswith("weight"))

    def decayed(self, gains: bool = False) -> Tensor:
        """(P,) one for entries of parameters that `decays` names; zero for all else."""
        parts = [
            torch.full((value[0].numel(),), float(self.decays(name, gains)), dtype=self.flat.dtype)
            for name, value in self.parameters.items()
        ]
        return torch.cat([torch.zeros(0, dtype=self.flat.dtype), *parts]).to(self.flat.device)

    @torch.no_grad()
    def settle(self, x: Tensor, rows: Tensor | None = None, steps: Sequence[int] = ()) -> None:
        """Fix batch norm's statistics for evaluation to those of the labelled set, where the network can, or
        where it made so few steps that its running ones are still those that it began with.

        Parameters
        ----------
        steps : (S,) how many each network made.
        """
        if self._stacked is not None:
            self._stacked({**self.parameters, **self.buffers}, x, rows, settle=True)
        elif self._norms:
            for position, made in enumerate(steps):
                count = x.shape[1] if rows is None else int((rows[position] > 0).sum())
                if 0 < made < _FEW_STEPS and count > 1:
                    self._settle_one(position, x[position, :count])

    def _settle_one(self, position: int, x: Tensor) -> None:
        """Take the statistics of network ``position`` anew from its rows (n, ...), without noise."""
        self.template.eval()
        state = {name: value[position] for name, value in {**self.parameters, **self.buffers}.items()}
        momenta = {name: layer.momentum for name, layer in self._norms.items()}
        for name, layer in self._norms.items():
            layer.train()
            layer.momentum = None  # the plain mean over the parts
            if layer.num_batches_tracked is not None:
                state[f"{name}.num_batches_tracked"].zero_()
        # Batch norm needs two rows at least.
        for part in x.tensor_split(max(1, len(x) // max(2, rows_per_pass(x.shape[1:])))):
            functional_call(self.template, state, (part,))
        for name, layer in self._norms.items():
            layer.momentum = momenta[name]

    def __call__(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Training-mode outputs: (S, n, ...) -> (S, n, ...); ``rows`` as in `MLP.stacked`."""
        self._train()
        state = {**self.parameters, **self.buffers}
        if self._stacked is not None:
            outputs: Tensor = self._stacked(state, x, rows)
            return outputs

        def call(state: dict[str, Tensor], x: Tensor) -> Tensor:
            outputs: Tensor = functional_call(self.template, state, (x,))
            return outputs

        if rows is not None and (self._norms or self._frozen_norms):
            # Padding would enter the statistics of batch norm: each network sees its real rows alone.
            each = []
            for position, count in enumerate((rows > 0).sum(1).tolist()):
                self._train(count > 1)  # a lone row has no variance, so it is seen as in evaluation
                one = {name: value[position] for name, value in state.items()}
                each.append(call(one, x[position, : max(count, 1)]))
            # Ones, since a feature of zero can have no gradient, and that would be multiplied by no share.
            return nn.utils.rnn.pad_sequence(
                [*each, each[0].new_ones(x.shape[1], *each[0].shape[1:])], True, 1.0
            )[:-1]
        if len(self) == 1:
            # Unlike the gradient of an entry, that of a squeeze is a view.
            return call({name: value.squeeze(0) for name, value in state.items()}, x.squeeze(0)).unsqueeze(0)
        together: Tensor = torch.vmap(call, randomness="different")(state, x)
        return together

    def _train(self, mode: bool = True) -> None:
        self.template.train(mode)
        for layer in self._frozen_norms:
            layer.eval()

    def cpu(self) -> Stack:
        """Move here, all networks in one transfer."""
        self.flat = self.flat.cpu()
        self.parameters = self._views(self.flat)
        self.buffers = {name: value.cpu() for name, value in self.buffers.items()}
        return self

    def member(self, position: int) -> nn.Module:
        """Network ``position``, on its own and in evaluation mode."""
        network = self._networks[position].to(self.flat)
        state = {**self.parameters, **self.buffers}
        network.load_state_dict(
            {name: value[position].detach() for name, value in state.items()}, strict=False
        )
        return network.eval()
