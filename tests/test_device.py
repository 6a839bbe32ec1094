"""On a GPU the same points are chosen as on the CPU."""

import pytest
import torch

from coresift import STRATEGIES, select
from coresift.models import BayesianLinearRegression, ProbitPosterior
from coresift.selectors import GIGA, LCMD, FrankWolfe, GreedyLogDet, KCenter, KMeansPlusPlus
from coresift.spaces import VectorSpace
from coresift.testing import check_selector, check_space

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "selector", [FrankWolfe(), GIGA(), LCMD(), KCenter(), KMeansPlusPlus(), GreedyLogDet()]
)
def test_selectors(selector):
    vectors = normal(6, 200)
    space = VectorSpace(vectors.cuda())
    check_space(space)
    check_selector(selector, space)
    expected = selector.select(VectorSpace(vectors), 12, seed=1)
    assert selector.select(space, 12, seed=1).index.tolist() == expected.index.tolist()


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"k-medoids"}))
@pytest.mark.parametrize("labelled", [None, normal(5, 4, seed=1)])
def test_strategies(strategy, labelled):
    pool = normal(60, 4)
    for posterior in (
        ProbitPosterior(normal(4), torch.eye(4, dtype=torch.float64)),
        BayesianLinearRegression().fit(pool[:8], pool[:8, 0]),
    ):
        if strategy in ("badge", "margin") and not isinstance(posterior, ProbitPosterior):
            continue
        on_gpu = type(posterior)(
            posterior.mean.cuda(),
            posterior.covariance.cuda(),
            *([] if isinstance(posterior, ProbitPosterior) else [posterior.shape, posterior.rate]),
        )
        options = {"budget": 7, "strategy": strategy, "labelled": labelled}
        expected = select(pool, posterior=posterior, **options).index.tolist()
        assert select(pool, posterior=on_gpu, **options).index.tolist() == expected
        assert select(pool.cuda(), posterior=on_gpu, **options).index.tolist() == expected
