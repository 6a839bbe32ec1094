"""The engine for a GPU: its kernels against numpy in float64, and its batches against those of the CPU.

Without a GPU the kernels run in Triton's interpreter, on the CPU: that runs this file as a script. Strategies
and estimators on a GPU are tested in test_device.py.
"""

import gc
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch
from selectors_to_test import SEARCHING

from coresift.search.base import Engine, engine_for, register_engine
from coresift.search.cuda import CudaDistances, CudaSearch, Layout
from coresift.search.gains import vector_gains
from coresift.search.graphs import nothing_collected, recorded
from coresift.spaces import VectorSpace

# (D, N): N is no multiple of a block, D no multiple of the rows that are loaded at once.
SHAPES = [(1, 97), (3, 300), (10, 233), (50, 70)]
# Small blocks, so that a program reads several of them.
SMALL = Layout(block=64, rows=8, warps=4, programs=3)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def draw(height, size, seed=0):
    """Vectors (D, N) around a common mean, and a mask (N,) with a few closed points."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(height, size, generator=generator) + 0.3
    is_open = torch.ones(size, dtype=torch.bool)
    is_open[torch.randperm(size, generator=generator)[: size // 10]] = False
    return vectors, is_open


def search_of(vectors, is_open, device):
    return CudaSearch(VectorSpace(vectors.to(device)), is_open.to(device), SMALL)


def best(vectors, is_open, element, orthogonal_to=None):
    """The first open point with the largest cosine up to rounding, by numpy."""
    vectors, element = vectors.double().numpy(), element.double().numpy()
    squares = (vectors**2).sum(0)
    if orthogonal_to is not None:
        squares = np.maximum(squares - (orthogonal_to.double().numpy() @ vectors) ** 2, 1e-12 * squares)
    scores = np.where(is_open.numpy(), element @ vectors / np.sqrt(squares), -np.inf)
    return int((scores >= scores.max() - 1e-13 * abs(scores.max())).argmax())


def check_argmax(device):
    for height, size in SHAPES:
        vectors, is_open = draw(height, size)
        search = search_of(vectors, is_open, device)
        elements = torch.randn(4, height, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        for element in (*elements, vectors.double().sum(1)):
            n = search.argmax(element.to(device))
            assert n.ndim == 0 and int(n) == best(vectors, is_open, element)
            assert torch.equal(search.vector(n).cpu(), vectors[:, int(n)].double())
            if height > 1:
                unit = elements[0] / elements[0].norm()
                element = element - (element @ unit) * unit
                n = search.argmax(element.to(device), unit.to(device))
                assert int(n) == best(vectors, is_open, element, unit)
        assert torch.equal(search.vector(torch.tensor(5, device=device)).cpu(), vectors[:, 5].double())


def check_argmax_of_few(device):
    """Ties, points that are closed and opened again, and no point at all."""
    vectors = torch.tensor([[1.0, 2.0, 1.0, 1.0], [1.0, 2.0, 2.0, 1.0]])[:, torch.arange(300) % 4]
    vectors[:, 2::4] *= 1e-15  # short vectors count as much
    is_open = torch.ones(300, dtype=torch.bool)
    is_open[:100] = False
    search = search_of(vectors, is_open, device)

    def found(*element):
        return int(search.argmax(torch.tensor(element, dtype=torch.float64, device=device)))

    def index(*numbers):
        return torch.tensor(numbers, device=device)

    assert found(1, 1) == 100 and found(0, 1) == 102 and found(-1, 0) == 102
    search.close(index(100))
    search.close(torch.tensor(101, device=device))
    search.close(torch.tensor(-1, device=device))
    assert found(1, 1) == 103 and found(0, 1) == 102
    search.reopen(index(101, 5))
    assert found(1, 1) == 5
    search.close(torch.arange(300, device=device))
    assert found(1, 1) == -1
    assert search.vector(torch.tensor(-1, device=device)).isfinite().all()


class Inputs(NamedTuple):
    target: torch.Tensor
    sigma: torch.Tensor


class State(NamedTuple):
    position: torch.Tensor
    index: torch.Tensor


def frank_wolfe(search, inputs, state):
    """A step of Frank-Wolfe that closes the point it moves to."""
    index = search.argmax(inputs.target - state.position)
    vector = search.vector(index)
    ahead = vector * (inputs.sigma / vector.norm()) - state.position
    gamma = ((inputs.target - state.position) @ ahead / (ahead @ ahead)).clamp(0, 1)
    search.close(index)
    return State(state.position + gamma * ahead, index)


def check_repeat(device, times):
    """Runs of several lengths make the steps that numpy makes one by one."""
    for height, size in SHAPES[1:3]:
        vectors, is_open = draw(height, size)
        search = search_of(vectors, is_open, device)
        target = vectors.double().sum(1)
        sigma = vectors.double().norm(dim=0).sum()
        inputs = Inputs(target.to(device), sigma.to(device))
        state = State(torch.zeros_like(inputs.target), torch.tensor(-1, device=device))
        position = np.zeros(height)
        for num in times:
            log = search.repeat(frank_wolfe, inputs, state, num)
            assert log[0].shape == (num, height) and log[1].shape == (num,)
            for n, after in zip(log[1].tolist(), log[0].cpu().numpy(), strict=True):
                assert n == best(vectors, is_open, target - torch.from_numpy(position))
                is_open[n] = False
                column = vectors[:, n].double().numpy()
                ahead = column * float(sigma) / np.linalg.norm(column) - position
                gamma = np.clip((target.numpy() - position) @ ahead / (ahead @ ahead), 0, 1)
                position = position + gamma * ahead
                np.testing.assert_allclose(after, position, rtol=1e-9, atol=1e-9)
            state = State(*(part[-1] for part in log))


def farthest_first(distances):
    n = distances.farthest()
    distances.add(n)
    return n


def largest_cluster_first(distances):
    n = distances.farthest(distances.largest_cluster())
    distances.add(n)
    return n


class Reference:
    """Distances to centres in numpy, rounded to float32."""

    def __init__(self, vectors, is_open, centres):
        self.vectors, self.is_open = vectors.double().numpy(), is_open.numpy()
        self.nearest = np.full(vectors.shape[1], np.inf, dtype=np.float32)
        self.owner, self.count = np.zeros(vectors.shape[1], dtype=int), 0
        for centre in centres:
            self.add(centre)

    def add(self, centre):
        distance = ((self.vectors - centre[:, None]) ** 2).sum(0).astype(np.float32)
        closer = distance < self.nearest
        self.nearest[closer], self.owner[closer] = distance[closer], self.count
        self.count += 1

    @property
    def sums(self):
        return np.bincount(self.owner, self.nearest.astype(float), self.count)

    def step(self, in_largest_cluster):
        candidates = self.is_open & (self.nearest > 0)
        if in_largest_cluster:
            candidates &= self.owner == self.sums.argmax()
        if not candidates.any():
            return -1
        n = int(np.where(candidates, self.nearest, -1).argmax())
        self.add(self.vectors[:, n])
        return n


def check_distances(device, step, times, shapes):
    for height, size in shapes:
        vectors, is_open = draw(height, size, seed=1)
        vectors[:, 5::7] = vectors[:, 4::7][:, : len(range(5, size, 7))]  # duplicates
        labelled = torch.randn(height, 3, generator=torch.Generator().manual_seed(2))
        for anchors, pending in ((None, []), (None, [4, 9]), (labelled, [7])):
            first = [] if anchors is None else list(anchors.double().numpy().T)
            first += [vectors[:, n].double().numpy() for n in pending]
            reference = Reference(vectors, is_open, first or [np.zeros(height)])
            space = VectorSpace(vectors.to(device), anchors)
            budget = sum(times)
            distances = CudaDistances(
                space, is_open.to(device), torch.tensor(pending).long(), budget, layout=SMALL
            )
            for num in times:
                expected = [reference.step(step is largest_cluster_first) for _ in range(num)]
                assert distances.repeat(step, num).tolist() == expected
                check_state(distances, reference)


def check_state(distances, reference):
    sums = distances.sums.cpu().numpy()
    np.testing.assert_allclose(sums[: reference.count], reference.sums, rtol=1e-6)
    assert not sums[reference.count :].any()
    assert int(distances.largest_cluster()) == reference.sums.argmax()
    np.testing.assert_allclose(distances.spread(), reference.sums.sum() ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(distances.radius(), float(reference.nearest.max()) ** 0.5, rtol=1e-6)
    weights = np.where(reference.is_open, reference.nearest, 0).astype(float)
    for share in (0.0, 0.3, 0.999999):
        expected = np.searchsorted(weights.cumsum(), share * weights.sum(), side="right")
        assert int(distances.draw(share)) == (expected if weights.any() else -1)


def check_distances_end(device):
    """Three places, two of them open: no further centre is found, and none is chosen twice."""
    none = torch.tensor([]).long()
    for step in (farthest_first, largest_cluster_first):
        vectors = torch.tensor([[3.0, 3.0, -1.0, -1.0, 0.5, 3.0]], device=device)
        is_open = torch.tensor([False, True, True, True, False, True], device=device)
        distances = CudaDistances(VectorSpace(vectors), is_open, none, 8)
        assert distances.repeat(step, 5).tolist()[:3] == [1, 2, -1]
        assert distances.repeat(step, 3).tolist() == [-1, -1, -1]
        assert distances.radius() == 0.5 and distances.spread() == 0.5
        assert distances.sums.tolist()[:3] == [0.25, 0.0, 0.0]
        assert int(distances.farthest()) == -1 and int(distances.draw(0.5)) == -1
        distances.add(torch.tensor(-1, device=device))
        assert distances.sums.tolist() == [0.25] + 8 * [0.0]


def check_selectors(device):
    """The selectors choose the same through these kernels as on the CPU."""
    vectors, _ = draw(3, 200, seed=3)
    vectors[:, 5::7] = vectors[:, 4::7][:, : len(range(5, 200, 7))]  # duplicates
    labelled = torch.randn(3, 2, generator=torch.Generator().manual_seed(2))
    options = {"pending": [3, 9], "exclude": [5, 11], "seed": 1}
    for selector in SEARCHING:
        expected = selector.select(VectorSpace(vectors, labelled), 7, **options)
        plain = engine_for(torch.device(device))
        register_engine(device, Engine(CudaSearch, CudaDistances, vector_gains))
        found = selector.select(VectorSpace(vectors.to(device), labelled), 7, **options)
        register_engine(device, plain)
        assert found.index.tolist() == expected.index.tolist()
        if expected.weights is not None:
            np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-6, atol=1e-9)


def check_all(device, times):
    check_selectors(device)
    check_argmax(device)
    check_argmax_of_few(device)
    check_repeat(device, times)
    check_distances(device, farthest_first, times, SHAPES)
    # In the interpreter, where this takes seconds, not with all shapes again.
    check_distances(device, largest_cluster_first, times, SHAPES[1:3] if device == "cpu" else SHAPES)
    check_distances_end(device)


def test_kernels_in_the_interpreter(run_interpreted):
    run_interpreted()


@needs_gpu
def test_kernels_on_a_gpu():
    check_all("cuda", (1, 2, 35, 70))


@needs_gpu
@pytest.mark.parametrize("step", [farthest_first, largest_cluster_first])
def test_batches_are_the_same_in_each_run(step):
    vectors = torch.randn(10, 200_001, generator=torch.Generator().manual_seed(2)).cuda()
    everywhere, none = torch.ones(200_001, dtype=torch.bool, device="cuda"), torch.tensor([]).long()
    runs = []
    for _ in range(2):
        distances = CudaDistances(VectorSpace(vectors), everywhere, none, 300)
        runs.append((distances.repeat(step, 300).tolist(), distances.sums.tolist()))
    assert runs[0] == runs[1]


@needs_gpu
def test_graphs_end_with_their_search():
    """With a cycle, vectors and graphs would stay on the GPU until Python looks for cycles."""
    vectors, is_open = draw(3, 400)
    search = search_of(vectors, is_open, "cuda")
    inputs = Inputs(*(torch.ones(shape, dtype=torch.float64, device="cuda") for shape in ((3,), ())))
    search.repeat(frank_wolfe, inputs, State(torch.zeros_like(inputs.target), torch.tensor(0).cuda()), 40)
    seen = weakref.ref(search)
    gc.disable()
    del search
    gc.enable()
    assert seen() is None


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_while_a_graph_is_recorded(enabled, monkeypatch):
    monkeypatch.setattr(gc, "isenabled", lambda: enabled)
    calls = []
    monkeypatch.setattr(gc, "disable", lambda: calls.append("disable"))
    monkeypatch.setattr(gc, "enable", lambda: calls.append("enable"))
    with pytest.raises(ZeroDivisionError), nothing_collected():
        raise ZeroDivisionError
    assert calls == ["disable", "enable"][: 1 + enabled]


@needs_gpu
def test_an_older_graph_does_not_break_a_new_one():
    numbers, threshold = torch.zeros(3, device="cuda"), gc.get_threshold()
    older = [recorded(lambda: numbers.add_(1.0))]
    older.append(older)
    kept = [older]
    del older

    def step() -> None:
        kept.clear()  # only the cycle holds the older graph now, and is looked for as soon as lists are made
        gc.set_threshold(1, 1, 1)
        for _ in range(10):
            numbers.add_(float(len([[], [], []])))

    try:
        graph = recorded(step)
    finally:
        gc.set_threshold(*threshold)
    graph.replay()
    assert numbers.tolist() == [30.0] * 3


if __name__ == "__main__":
    check_all("cpu", (1, 2, 5))
