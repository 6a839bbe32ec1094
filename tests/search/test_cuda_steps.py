"""The loops of engines/cuda.py: plain torch and the kernels against the same steps in numpy, float64.

Without a GPU the kernels run in Triton's interpreter: that runs this file as a script.
"""

import gc
import importlib.util
import weakref

import numpy as np
import pytest
import torch

from coresift.search.cuda import CentreSteps, Foreseen, FrankWolfeSteps, Layout, _Loop, half_error
from coresift.search.kernels import nothing_collected, recorded

INSTALLED = importlib.util.find_spec("triton") is not None
# (J, N): N is no multiple of a block, J no multiple of the rows that are loaded at once.
SHAPES = [(1, 97), (3, 400), (10, 333), (100, 150)]
# Small blocks, so that a program reads several of them.
SMALL = Layout(block=64, rows=8, warps=4, programs=3)

needs_gpu = pytest.mark.skipif(
    not (INSTALLED and torch.cuda.is_available()),
    reason="needs a GPU and Triton, which comes with torch there",
)


def draw(height: int, size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors (J, N) around a common mean, with a few closed points, and their scale (N,)."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(height, size, generator=generator) + 0.3
    scale = 1 / vectors.double().square().sum(0).sqrt().float()
    scale[torch.randperm(size, generator=generator)[: size // 10]] = 0.0
    return vectors, scale


def frank_wolfe(vectors, scale, target, start, steps, close, tolerance):
    """The steps as in selectors/frank_wolfe.py; index, rows of gamma, with_target, square, and refused."""
    vectors, scale = vectors.double().numpy(), scale.double().numpy().copy()
    position, with_target, square, sigma = start
    chosen, rows = [], []
    for _ in range(steps):
        residual = np.sqrt(max(target @ target - 2 * with_target + square, 0.0))
        if residual <= tolerance * np.linalg.norm(target) or not (scale > 0).any():
            return chosen, rows, None
        scores = np.where(scale > 0, ((target - position) @ vectors) * scale, -np.inf)
        n = int(scores.argmax())
        vertex = sigma / np.linalg.norm(vectors[:, n]) * vectors[:, n]
        slope = (vertex - position) @ (target - position)
        length = (vertex - position) @ (vertex - position)
        if slope <= 0 or length <= 0:
            return chosen, rows, n
        gamma = min(slope / length, 1.0)
        position = (1 - gamma) * position + gamma * vertex
        with_target, square = target @ position, position @ position
        chosen.append(n)
        rows.append((gamma, with_target, square))
        if close:
            scale[n] = 0.0
    return chosen, rows, None


def check_frank_wolfe(device: str, kernels: bool, close: bool, half: bool) -> None:
    for height, size in SHAPES:
        vectors, scale = draw(height, size)
        target = vectors.double().sum(1).numpy()
        sigma = float(vectors.double().square().sum(0).sqrt().sum())
        nothing = (np.zeros(height), 0.0, 0.0, sigma)
        chosen, rows, refused = frank_wolfe(vectors, scale, target, nothing, 24, close, 1e-6)
        own = scale.clone().to(device)
        engine = FrankWolfeSteps(vectors.to(device), own, half=half, layout=SMALL, kernels=kernels)
        # In two runs: the second goes on where the first ended, and must leave nothing of it behind.
        first = engine.run(torch.tensor(target), torch.zeros(height), 0.0, 0.0, sigma, 7, close, 1e-6)
        parts: list[Foreseen] = [first]
        if len(first.index) == 7:
            last = float(first.with_target[-1]), float(first.square[-1])
            parts.append(engine.run(torch.tensor(target), engine.position, *last, sigma, 17, close, 1e-6))
        assert torch.cat([part.index for part in parts]).tolist() == chosen
        assert parts[-1].refused == refused
        numbers = torch.cat([torch.stack([p.gamma, p.with_target, p.square], 1) for p in parts])
        np.testing.assert_allclose(numbers.numpy(), np.array(rows).reshape(-1, 3), rtol=1e-7)
        assert (own == 0).sum() == (scale == 0).sum() + (len(chosen) if close else 0)


def check_frank_wolfe_ends(device: str, kernels: bool, half: bool) -> None:
    vectors, scale = draw(3, 200)
    total = vectors.double().sum(1)
    sigma = float(vectors.double().square().sum(0).sqrt().sum())

    def run(scale, target, steps=50, tolerance=0.0, close=False):
        engine = FrankWolfeSteps(
            vectors.to(device), scale.clone().to(device), half=half, layout=SMALL, kernels=kernels
        )
        return engine.run(target, torch.zeros(3), 0.0, 0.0, sigma, steps, close, tolerance)

    # At a distance of a tenth, a few steps suffice.
    reached = run(scale, total, tolerance=0.1)
    assert 0 < len(reached.index) < 50 and reached.refused is None
    # No step to the only open point comes closer to a target on the other side.
    only = torch.zeros_like(scale)
    only[17] = 1 / vectors[:, 17].norm()
    away = run(only, -vectors[:, 17].double())
    assert len(away.index) == 0 and away.refused == 17
    # One open point, closed by the first step; none at all; no steps.
    assert run(only, total, close=True).index.tolist() == [17]
    assert run(only, total, close=True).refused is None
    assert len(run(torch.zeros_like(scale), total).index) == 0
    assert len(run(scale, total, steps=0).index) == 0
    # More steps than there was room for at first; not in the interpreter, where each takes its time.
    if device != "cpu" or not kernels:
        assert torch.equal(run(scale, total, steps=40).index, run(scale, total, steps=5000).index[:40])
    # Of equal points the first.
    vectors[:] = vectors[:, :1]
    scale[:] = 1 / vectors[:, 0].norm()
    scale[:70] = 0.0
    assert run(scale, vectors.double().sum(1), steps=1).index.tolist() == [70]


# Pools whose rounded scores mislead: cosines that differ by less than float16 can tell, ties, norms that
# float16 cannot hold, numbers too small for it.
HARD = {
    "near": lambda values: values[:, :1] + 1e-5 * values,
    "copies": lambda values: values[:, torch.arange(values.shape[1]) % 5],
    "long and short": lambda values: values * torch.logspace(-18, 18, values.shape[1]),
    "small numbers": lambda values: values * torch.logspace(-9, 0, len(values))[:, None],
}


def check_half_on_hard_pools(device: str, kernels: bool) -> None:
    for kind in HARD.values():
        vectors, scale = draw(10, 900, seed=3)
        vectors = kind(vectors)
        scale[scale > 0] = 1 / vectors.double().square().sum(0).sqrt().float()[scale > 0]
        sigma = float(vectors.double().square().sum(0).sqrt().sum())
        total = vectors.double().sum(1)
        for target in (total, -total, vectors[:, -1].double(), torch.zeros(10)):
            fine, rough = (
                FrankWolfeSteps(
                    vectors.to(device), scale.clone().to(device), half=half, layout=SMALL, kernels=kernels
                ).run(target, torch.zeros(10), 0.0, 0.0, sigma, 12, close=True, tolerance=-1.0)
                for half in (False, True)
            )
            assert rough.index.tolist() == fine.index.tolist() and rough.refused == fine.refused
            assert torch.equal(rough.square, fine.square)


def check_half_leaves_blocks_out(device: str, kernels: bool) -> None:
    """A block that cannot win is not looked at: it may say what it likes."""
    block = 2 * SMALL.block
    vectors, scale = draw(3, 6 * block)
    total = vectors.double().sum(1)
    cosines = (total @ vectors.double()) * scale
    engine = FrankWolfeSteps(vectors.to(device), scale.to(device), half=True, layout=SMALL, kernels=kernels)
    worst = int(cosines.view(-1, block).amax(1).argmin())
    engine.vectors.view(3, -1, block)[:, worst] = 100 * total.to(engine.vectors)[:, None]
    found = engine.run(total, torch.zeros(3), 0.0, 0.0, float(total.norm()), steps=1).index
    assert found.tolist() == [int(cosines.argmax())]


class Reference:
    """Centres as in selectors/distance.py, with the differences taken directly."""

    def __init__(self, vectors: torch.Tensor, allowed: torch.Tensor) -> None:
        self.vectors, self.allowed = vectors.double().numpy(), allowed.numpy()
        self.nearest = (self.vectors**2).sum(0)
        self.owner, self.count = np.zeros(vectors.shape[1], dtype=int), 1

    @property
    def sums(self):
        return np.bincount(self.owner, self.nearest, self.count)

    def run(self, steps: int, largest_cluster: bool) -> list[int]:
        chosen: list[int] = []
        for _ in range(steps):
            candidates = self.allowed & (self.nearest > 0)
            if largest_cluster:
                candidates &= self.owner == self.sums.argmax()
            if not candidates.any():
                break
            n = int(np.where(candidates, self.nearest, -1.0).argmax())
            distance = ((self.vectors - self.vectors[:, [n]]) ** 2).sum(0)
            closer = distance < self.nearest
            self.nearest[closer], self.owner[closer] = distance[closer], self.count
            self.count += 1
            chosen.append(n)
        return chosen


def check_centres(device: str, kernels: bool, largest_cluster: bool) -> None:
    for height, size in SHAPES:
        vectors, scale = draw(height, size, seed=1)
        vectors[:, 5::7] = vectors[:, 4::7][:, : len(range(5, size, 7))]  # duplicates
        allowed = scale > 0
        reference = Reference(vectors, allowed)
        squares = vectors.double().square().sum(0)
        state = [squares.clone(), torch.zeros(size, dtype=torch.int32), torch.zeros(45, dtype=torch.float64)]
        state[2][0] = squares.sum()
        nearest, owner, sums = (tensor.to(device) for tensor in state)
        engine = CentreSteps(
            vectors.to(device),
            squares.to(device),
            nearest,
            owner,
            sums,
            allowed.to(device),
            1,
            layout=SMALL,
            kernels=kernels,
        )
        for steps in (1, 6, 13):
            assert engine.run(steps, largest_cluster).tolist() == reference.run(steps, largest_cluster)
            assert engine.count == reference.count
            np.testing.assert_allclose(nearest.cpu().numpy(), reference.nearest, rtol=1e-12)
            np.testing.assert_array_equal(owner.cpu().numpy(), reference.owner)
            want = np.zeros(45)
            want[: reference.count] = reference.sums
            np.testing.assert_allclose(sums.cpu().numpy(), want, rtol=1e-9, atol=1e-9)
        with pytest.raises(ValueError, match="need sums of that many"):
            engine.run(45, largest_cluster)


def check_centres_end(device: str, kernels: bool) -> None:
    """Three places, two of them open: no further centre is found, and none is chosen twice."""
    for largest_cluster in (False, True):
        vectors = torch.tensor([[3.0, 3.0, -1.0, -1.0, 0.5, 3.0]], device=device)
        squares = vectors.double().square().sum(0)
        allowed = torch.tensor([False, True, True, True, False, True], device=device)
        nearest, owner = squares.clone(), torch.zeros(6, dtype=torch.int32, device=device)
        sums = torch.zeros(9, dtype=torch.float64, device=device)
        sums[0] = squares.sum()
        engine = CentreSteps(vectors, squares, nearest, owner, sums, allowed, 1, kernels=kernels)
        assert engine.run(5, largest_cluster).tolist() == [1, 2]
        assert engine.run(5, largest_cluster).tolist() == []
        assert nearest.tolist() == [0.0, 0.0, 0.0, 0.0, 0.25, 0.0] and engine.count == 3


def check_all(device: str, kernels: bool) -> None:
    for flag in (False, True):
        check_frank_wolfe(device, kernels, close=flag, half=False)
        check_frank_wolfe(device, kernels, close=flag, half=True)
        check_frank_wolfe_ends(device, kernels, half=flag)
        check_centres(device, kernels, largest_cluster=flag)
    check_half_on_hard_pools(device, kernels)
    check_half_leaves_blocks_out(device, kernels)
    check_centres_end(device, kernels)


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_plain_frank_wolfe_steps_are_the_published_ones(close, half):
    check_frank_wolfe("cpu", kernels=False, close=close, half=half)


@pytest.mark.parametrize("half", [False, True])
def test_plain_frank_wolfe_ends_where_it_should(half):
    check_frank_wolfe_ends("cpu", kernels=False, half=half)


def test_plain_half_scans_have_the_same_winners():
    check_half_on_hard_pools("cpu", kernels=False)
    check_half_leaves_blocks_out("cpu", kernels=False)


@pytest.mark.parametrize("height", [2, 10, 100, 1000])
@pytest.mark.parametrize("small", [False, True])
def test_scores_in_float16_are_as_near_as_the_bound_says(height, small):
    vectors, _ = draw(height, 200)
    vectors = HARD["small numbers"](vectors) if small else vectors
    scale = 1 / vectors.double().square().sum(0).sqrt().float()
    exact, rounded = vectors.double() * scale.double(), (vectors * scale).half()
    # The direction in which rounding moved a vector is the worst one for it.
    directions = torch.nn.functional.normalize(rounded.double() - exact, dim=0)
    scores = torch.zeros(200)
    for row, weight in zip(rounded, directions.float(), strict=True):
        scores += row * weight
    error = float((scores - (directions * exact).sum(0)).abs().max())
    assert (0 if small else 2**-13) < error < half_error(height)


@pytest.mark.parametrize("largest_cluster", [False, True])
def test_plain_centres_are_the_farthest(largest_cluster):
    check_centres("cpu", kernels=False, largest_cluster=largest_cluster)


def test_plain_centres_end_with_the_distances():
    check_centres_end("cpu", kernels=False)


def test_vectors_are_checked():
    with pytest.raises(ValueError, match="float32"):
        FrankWolfeSteps(torch.zeros(2, 3).double(), torch.ones(3))


@pytest.mark.skipif(INSTALLED, reason="Triton is installed")
def test_missing_triton_is_named():
    with pytest.raises(ImportError, match="pip install triton"):
        FrankWolfeSteps(torch.ones(2, 3), torch.ones(3), kernels=True)


def test_interpreted_kernels_make_the_same_steps(run_interpreted):
    run_interpreted()


def test_loops_end_with_their_owners():
    """With a cycle, vectors and graphs would stay on the GPU until Python looks for cycles."""
    steps = FrankWolfeSteps(torch.ones(2, 3), torch.ones(3))
    steps._loop = _Loop(steps._step, torch.device("cpu"))
    seen = weakref.ref(steps)
    gc.disable()
    del steps
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


@needs_gpu
def test_kernels_make_the_same_steps_on_a_gpu():
    check_all("cuda", kernels=True)
    check_all("cuda", kernels=False)


@needs_gpu
@pytest.mark.parametrize("largest_cluster", [False, True])
def test_batches_are_the_same_in_each_run(largest_cluster):
    vectors = torch.randn(10, 200_001, generator=torch.Generator().manual_seed(2)).cuda()
    squares = vectors.double().square().sum(0)
    batches = []
    for _ in range(2):
        owner = torch.zeros(200_001, dtype=torch.int32, device="cuda")
        sums = torch.zeros(301, dtype=torch.float64, device="cuda")
        sums[0] = squares.sum()
        everywhere = torch.ones_like(owner, dtype=torch.bool)
        engine = CentreSteps(vectors, squares, squares.clone(), owner, sums, everywhere, 1)
        batches.append((engine.run(300, largest_cluster).tolist(), engine.sums.tolist()))
    assert batches[0] == batches[1]


if __name__ == "__main__":
    check_all("cpu", kernels=True)
