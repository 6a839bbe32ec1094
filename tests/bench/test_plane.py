"""The paper's toy figures: what is drawn is what the library says, and that is what the theory says."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import coresift
from coresift.bench import plane
from coresift.bench.plane import PlaneProblem
from coresift.bench.statistics import nearest_distance
from coresift.posteriors import BayesianProbitRegression
from coresift.report.figures import save

STAGES, SEED, RESOLUTION = (1, 2, 3, 10), 9, 10


@pytest.fixture(scope="module")
def picture() -> Figure:
    return plane.probit_batches(STAGES, seed=SEED, resolution=RESOLUTION)


@pytest.fixture(scope="module")
def problem() -> PlaneProblem:
    return PlaneProblem.draw(SEED)


@pytest.fixture(scope="module")
def posterior(problem):
    return BayesianProbitRegression().fit(problem.x, problem.y)


def points(axes: Axes, label: str) -> np.ndarray:
    (found,) = [part for part in axes.collections if part.get_label() == label]
    return np.asarray(found.get_offsets())


@pytest.mark.parametrize("name", plane.FIGURES)
def test_figures_can_be_saved(name: str, tmp_path: Path) -> None:
    save(plane.FIGURES[name](), tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("row", "strategy"), [(0, "bald"), (1, "acs-fisher")])
def test_drawn_batch_is_the_one_selected(picture, problem, posterior, row, strategy):
    batch = coresift.select(problem.pool, posterior=posterior, budget=10, strategy=strategy).index
    for axes, stage in zip(picture.axes[row * len(STAGES) :], STAGES, strict=False):
        np.testing.assert_array_equal(points(axes, "batch"), problem.pool[batch[:stage]])
        assert [text.get_text() for text in axes.texts] == [str(n + 1) for n in range(stage)]


def test_numbers_do_not_overlap(picture):
    picture.draw_without_rendering()
    for axes in picture.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert all(axes.get_window_extent().contains(*corner) for box in boxes for corner in box.corners())


@pytest.mark.parametrize("seed", range(4))
def test_acs_spreads_its_batch_further_than_bald(seed):
    problem = PlaneProblem.draw(seed)
    assert nearest_distance(problem.batch("acs-fisher").numpy()) > nearest_distance(
        problem.batch("bald").numpy()
    )


def test_bald_surface_is_the_mutual_information(picture, posterior):
    """Also that rows of the image run along the second coordinate."""
    mean, covariance = posterior.mean.numpy(), posterior.covariance.numpy()
    line = np.linspace(-plane.EXTENT, plane.EXTENT, RESOLUTION)
    surface = picture.axes[0].images[0].get_array()

    def entropy(z):
        return scipy.stats.bernoulli(scipy.stats.norm.cdf(z)).entropy()

    for row, column in ((0, 4), (9, 4), (7, 2), (3, 6)):
        x = np.array([line[column], line[row]])
        latent = scipy.stats.norm(mean @ x, np.sqrt(x @ covariance @ x))
        expected, _ = scipy.integrate.quad(
            lambda f, latent=latent: latent.pdf(f) * entropy(f), *latent.interval(1 - 1e-14), epsabs=1e-10
        )
        whole = entropy(mean @ x / np.sqrt(1 + x @ covariance @ x))
        assert surface[row, column] == pytest.approx(whole - expected, abs=1e-9)


def test_each_step_goes_to_the_top_of_its_surface(problem, posterior):
    """Evaluated on the pool itself, the surface is highest at the point that the step chose."""
    stages = plane.frank_wolfe_stages(posterior, problem.pool, problem.pool, range(1, 11))
    for batch, surface in stages:
        torch.testing.assert_close(batch[-1], problem.pool[surface.argmax()], rtol=0, atol=0)
    # The first line search leaves nothing to gain along the first point. An inner product is good to 1e-12.
    first = stages[0][1]
    assert abs(stages[1][1][first.argmax()]) < 1e-11 * first.max()


def test_linear_curves_are_the_paper_s_formulas():
    figure = plane.linear_norms(7, seed=3)
    data, left, right = figure.axes
    x, y = points(data, "labels").T
    variance = 1 / (1 + (x @ x) / 5)  # prior variance 1, noise 5
    place, mean = data.lines[0].get_data()
    np.testing.assert_allclose(mean, place * variance * (x @ y) / 5, rtol=1e-12)

    place, information = left.lines[0].get_data()
    assert not np.any(place == 0)
    np.testing.assert_allclose(information, 0.5 * np.log(1 + place**2 * variance / 5), rtol=1e-12, atol=1e-15)
    norm = right.lines[0].get_data()[1]
    np.testing.assert_allclose(norm, place**2 * variance / 25, rtol=1e-12)
    # A rising function of each other, but not in proportion, as the paper's caption has it.
    assert np.array_equal(np.argsort(norm[100:]), np.argsort(information[100:]))
    assert np.ptp(norm / information) > 0.1
    dots = right.lines[1].get_data()[1]
    np.testing.assert_allclose(dots, norm[::8], rtol=1e-12)
