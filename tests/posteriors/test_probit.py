from __future__ import annotations

import math

import pytest
import scipy.special
import torch
from torch import Tensor

from coresift.errors import InputError
from coresift.pool import ArrayPool
from coresift.posteriors.base import LastLayerPosterior
from coresift.posteriors.probit import BayesianProbitRegression, ProbitPosterior
from coresift.spaces import ProbitFisherSpace
from coresift.spaces.likelihood import expected_log_likelihood


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


def labelled(num: int, seed: int) -> tuple[Tensor, Tensor]:
    x = normal(num, 2, seed=seed)
    return x, (x[:, 0] + 0.5 * normal(num, seed=seed + 100) > 0).long()


def exact_moments(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the posterior under a standard normal prior, on a fine grid of theta."""
    axis = torch.linspace(-8, 8, 401, dtype=torch.float64)
    theta = torch.cartesian_prod(axis, axis)
    log_density = torch.special.log_ndtr((theta @ x.mT) * (2 * y - 1)).sum(1) - 0.5 * theta.square().sum(1)
    weight = torch.softmax(log_density, 0)
    mean = weight @ theta
    return mean, (theta - mean).mT @ (weight[:, None] * (theta - mean))


def errors(posterior: ProbitPosterior, mean: Tensor, covariance: Tensor) -> tuple[float, float]:
    """Largest errors of mean and covariance, in posterior standard deviations."""
    scale = covariance.diagonal().sqrt()
    mean_error = (posterior.mean - mean) / scale
    covariance_error = (posterior.covariance - covariance) / scale / scale[:, None]
    return float(mean_error.abs().max()), float(covariance_error.abs().max())


@pytest.mark.parametrize("seed", range(3))
def test_ep_is_close_to_the_exact_posterior_and_laplace_less_so(seed: int) -> None:
    x, y = labelled(8, seed)
    exact = exact_moments(x, y)
    ep = errors(BayesianProbitRegression("ep").fit(x, y), *exact)
    laplace = errors(BayesianProbitRegression("laplace").fit(x, y), *exact)
    assert ep[0] < 0.01
    assert ep[1] < 0.1
    assert ep[0] < laplace[0]
    assert ep[1] < laplace[1]
    assert laplace[0] < 0.6  # the mode of a skewed density is off its mean, but not by a deviation


def test_ep_is_exact_for_one_label() -> None:
    x, y = labelled(1, 0)
    # The grid's spacing of 0.04 leaves no error of its own: the trapezoid rule is spectral here.
    assert max(errors(BayesianProbitRegression("ep").fit(x, y), *exact_moments(x, y))) < 1e-7


def test_ep_reaches_the_fixed_point_of_site_by_site_updates() -> None:
    x, y = labelled(6, 1)
    signed = x * (2 * y - 1)[:, None]
    precision, shift = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    for _, n in ((sweep, n) for sweep in range(40) for n in range(6)):
        others = torch.arange(6) != n
        cavity_precision = torch.eye(2).double() + signed[others].mT @ (
            precision[others, None] * signed[others]
        )
        covariance = cavity_precision.inverse()
        mean = signed[n] @ covariance @ (signed[others].mT @ shift[others])
        variance = signed[n] @ covariance @ signed[n]
        f = mean + variance.sqrt() * grid
        tilted = torch.softmax(torch.special.log_ndtr(f) - grid.square() / 2, 0)
        tilted_mean = tilted @ f
        tilted_variance = tilted @ (f - tilted_mean).square()
        precision[n] = 1 / tilted_variance - 1 / variance
        shift[n] = tilted_mean / tilted_variance - mean / variance
    covariance = (torch.eye(2).double() + signed.mT @ (precision[:, None] * signed)).inverse()
    posterior = BayesianProbitRegression("ep").fit(x, y)
    torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(posterior.mean, covariance @ signed.mT @ shift, rtol=1e-7, atol=1e-7)


def test_laplace_stops_where_the_gradient_is_zero_and_takes_the_curvature_there() -> None:
    x, y = labelled(20, 2)

    def minus_log_density(theta: Tensor) -> Tensor:
        return 0.5 * theta @ theta - torch.special.log_ndtr((2 * y - 1) * (x @ theta)).sum()

    posterior = BayesianProbitRegression("laplace").fit(x, y)
    gradient = torch.func.grad(minus_log_density)(posterior.mean)
    # log_ndtr has no second derivative in torch: differences of the first.
    step = 1e-5 * torch.eye(2, dtype=torch.float64)
    hessian = torch.stack(
        [
            torch.func.grad(minus_log_density)(posterior.mean + move)
            - torch.func.grad(minus_log_density)(posterior.mean - move)
            for move in step
        ]
    ) / (2e-5)
    assert float(gradient.abs().max()) < 1e-7
    torch.testing.assert_close(posterior.covariance, hessian.inverse(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", ["ep", "laplace"])
@pytest.mark.parametrize("prior_covariance", [1.0, 1e4])
def test_separable_labels_and_a_row_of_zeros_stay_finite(method: str, prior_covariance: float) -> None:
    x = torch.cat([10 * normal(200, 2), torch.zeros(1, 2, dtype=torch.float64)])
    y = x[:, 0] > 0
    posterior = BayesianProbitRegression(method, prior_covariance=prior_covariance).fit(x, y)  # type: ignore[arg-type]
    assert bool(torch.isfinite(posterior.covariance).all())
    assert bool((posterior.predictive(x[:200]).probs.round().bool() == y[:200]).all())


def test_labels_that_contradict_a_firm_prior() -> None:
    # Cavity arguments near -300, where Phi is zero in float64: EP and Laplace agree on the narrow posterior.
    x, y = torch.full((50, 1), 10.0, dtype=torch.float64), torch.zeros(50)
    fits = [
        BayesianProbitRegression(method, prior_mean=30.0, prior_covariance=0.01).fit(x, y)  # type: ignore[arg-type]
        for method in ("ep", "laplace")
    ]
    torch.testing.assert_close(fits[0].mean, fits[1].mean, rtol=1e-2, atol=0)


def test_labels_of_any_kind_and_none_at_all() -> None:
    x, y = labelled(8, 0)
    model = BayesianProbitRegression()
    means = [model.fit(x, kind).mean for kind in (y, y.bool(), y.float(), y.to(torch.uint8))]
    assert all(bool((mean == means[0]).all()) for mean in means)
    assert model.fit(x.float(), y).mean.dtype == torch.float32
    for method in ("ep", "laplace"):
        prior = BayesianProbitRegression(method, 1.0, 2.0).fit(x[:0], y[:0])  # type: ignore[arg-type]
        torch.testing.assert_close(prior.mean, torch.ones(2).double())
        torch.testing.assert_close(prior.covariance, 2 * torch.eye(2).double())


def test_bad_input_is_told() -> None:
    x, y = labelled(8, 0)
    with pytest.raises(InputError, match=r"y holds -1 in row \d, expected labels 0 and 1"):
        BayesianProbitRegression().fit(x, 2 * y - 1)
    with pytest.raises(InputError, match=r"y holds 0\.5 in row 0"):
        BayesianProbitRegression().fit(x, torch.full((8,), 0.5))
    with pytest.raises(InputError, match="nan"):
        BayesianProbitRegression().fit(x, torch.full((8,), math.nan))
    with pytest.raises(InputError, match="method is 'vb'"):
        BayesianProbitRegression("vb")  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match=r"still moved by .* after 2 iterations") as caught:
        BayesianProbitRegression(max_iterations=2).fit(x, y)
    assert caught[0].filename == __file__
    with pytest.warns(RuntimeWarning, match="Newton's method"):
        BayesianProbitRegression("laplace", max_iterations=1).fit(x, y)


POSTERIOR = ProbitPosterior(
    torch.tensor([0.4, -0.3], dtype=torch.float64),
    torch.tensor([[0.8, 0.3], [0.3, 0.5]], dtype=torch.float64),
)


def gauss_hermite(num: int = 120) -> tuple[Tensor, Tensor]:
    """Nodes (num^2, 2) and weights (num^2,) for expectations over ``POSTERIOR``."""
    # Golub and Welsch: the nodes are the eigenvalues of the Hermite polynomials' Jacobi matrix.
    off = torch.arange(1, num, dtype=torch.float64).sqrt()
    node, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    weight = vectors[0].square()
    factor = torch.linalg.cholesky(POSTERIOR.covariance)
    theta = POSTERIOR.mean + torch.cartesian_prod(node, node) @ factor.mT
    return theta, torch.cartesian_prod(weight, weight).prod(1)


def test_predictions_are_averages_over_the_posterior() -> None:
    assert isinstance(POSTERIOR, LastLayerPosterior)
    x = normal(7, 2)
    theta, weight = gauss_hermite()
    conditional = POSTERIOR.conditional(x, theta)
    assert conditional.batch_shape == (14400, 7)
    torch.testing.assert_close(weight @ conditional.probs, POSTERIOR.predictive(x).probs, rtol=0, atol=1e-12)
    variance = weight @ (theta @ x.mT).square() - (weight @ (theta @ x.mT)).square()
    torch.testing.assert_close(POSTERIOR.function_variance(x), variance)
    draws = POSTERIOR.sample(20_000, torch.manual_seed(0))
    torch.testing.assert_close(draws.mT.cov(), POSTERIOR.covariance, rtol=0, atol=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_divergence_from_a_sure_sample_is_finite(dtype: torch.dtype) -> None:
    outputs = torch.tensor([-1e3, -30.0, -2.0, 0.0, 6.0, 1e3], dtype=dtype)[None, :, None].requires_grad_()
    predictive = POSTERIOR.predictive(normal(6, 2)).expand(torch.Size([1, 6]))
    divergence = -expected_log_likelihood(predictive, POSTERIOR.likelihood(outputs, None))  # type: ignore[arg-type]
    assert bool(torch.isfinite(divergence).all())
    (gradient,) = torch.autograd.grad(divergence.sum(), outputs)
    assert bool(torch.isfinite(gradient).all())
    # The gradient is that of -p log Phi(f) - (1 - p) log Phi(-f).
    f, p = outputs[0, 2:4, 0], predictive.probs[0, 2:4]
    expected = -p * torch.special.log_ndtr(f) - (1 - p) * torch.special.log_ndtr(-f)
    torch.testing.assert_close(gradient[0, 2:4, 0], torch.autograd.grad(expected.sum(), f)[0])


ROWS = normal(23, 2, seed=3)


def paper_gram(rows: Tensor) -> Tensor:
    """E[grad L_n^T grad L_m] with grad L_n = (Phi(zeta_n) - Phi(theta^T x_n)) x_n, by quadrature."""
    theta, weight = gauss_hermite()
    scalar = POSTERIOR.predictive(rows).probs - torch.special.ndtr(theta @ rows.mT)
    gradient = scalar[:, :, None] * rows
    return torch.einsum("j,jnd,jmd->nm", weight, gradient, gradient)


@pytest.mark.parametrize("tile", [1, 7, 256])
def test_space_against_quadrature_of_the_papers_gradients(tile: int) -> None:
    space = ProbitFisherSpace(POSTERIOR, ArrayPool(ROWS, chunk_size=5), tile=tile)
    gram = paper_gram(ROWS)
    # The quadrature still moves by 3e-14 when its nodes are doubled.
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(space.gram(torch.arange(23)), gram, **close)
    torch.testing.assert_close(space.gram(torch.tensor([5, 2])), gram[[5, 2]][:, [5, 2]], **close)
    torch.testing.assert_close(space.norms.square(), gram.diagonal(), **close)
    torch.testing.assert_close(space.column(4), gram[4], **close)
    torch.testing.assert_close(space.row_sums(), gram.sum(0), rtol=0, atol=1e-11)
    assert space.total() is space.total()  # the pairs are visited once
    assert float(space.dot(space.total(), space.total())) == pytest.approx(float(gram.sum()), abs=1e-10)


def test_anchors_are_the_columns_they_would_have_in_the_pool() -> None:
    whole = ProbitFisherSpace(POSTERIOR, ArrayPool(ROWS))
    space = ProbitFisherSpace(POSTERIOR, ArrayPool(ROWS[:20]), labelled=ROWS[20:])
    assert len(space) == 20
    ((columns, squares),) = space.anchors()
    for n, element in enumerate(columns, start=20):
        torch.testing.assert_close(element[1], whole.column(n)[:20])
    torch.testing.assert_close(squares, whole.norms[20:] ** 2)
    assert list(whole.anchors()) == []


def test_norms_are_the_papers_owens_t() -> None:
    space = ProbitFisherSpace(POSTERIOR, ArrayPool(ROWS))
    variance = POSTERIOR.function_variance(ROWS)
    zeta = ROWS @ POSTERIOR.mean / (1 + variance).sqrt()
    cdf = torch.special.ndtr(zeta)
    expected = cdf * (1 - cdf) - 2 * torch.from_numpy(
        scipy.special.owens_t(zeta.numpy(), 1 / (1 + 2 * variance).sqrt().numpy())
    )
    torch.testing.assert_close(space.norms.square(), ROWS.square().sum(1) * expected, rtol=1e-12, atol=0)


def test_no_cosine_exceeds_one_however_sure_the_model() -> None:
    # Owen's form of the norm fails here: Phi (1 - Phi) cancels 2 T down to noise.
    posterior = ProbitPosterior(torch.tensor([5.0, 0.0]).double(), 1e-4 * torch.eye(2).double())
    rows = torch.cat([normal(40, 2), torch.tensor([[1.5, 0.1], [1.5, 0.1], [1e-6, 1e-6]]).double()])
    space = ProbitFisherSpace(posterior, ArrayPool(rows))
    cosine = space.gram(torch.arange(43)) / space.norms / space.norms[:, None]
    assert float(cosine.abs().max()) < 1 + space.resolution
    assert float(cosine[40, 41]) == pytest.approx(1, abs=space.resolution)


def test_a_space_is_silent_unless_on_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    ProbitFisherSpace(POSTERIOR, ArrayPool(ROWS)).total()
    assert capfd.readouterr() == ("", "")
