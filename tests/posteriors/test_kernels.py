"""The kernel against scikit-learn's; pivots against a Cholesky decomposition written as a loop."""

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Matern

from coresift.posteriors.kernels import Matern52, pivoted_cholesky

RANDOM = np.random.default_rng(0)
X = torch.tensor(RANDOM.normal(size=(40, 3)))
LENGTHS = torch.tensor([0.5, 1.0, 4.0]).double()


def test_as_in_scikit_learn():
    expected = 3 * Matern(LENGTHS.numpy(), nu=2.5)(X.numpy(), X[:7].numpy())
    assert np.allclose(Matern52(X.mean(0), LENGTHS, 3.0)(X, X[:7]), expected, rtol=1e-12)


def test_a_large_offset_costs_no_precision():
    kernel = Matern52(X.mean(0), LENGTHS, 3.0)
    far = Matern52(X.mean(0) + 2**20, LENGTHS, 3.0)
    assert torch.allclose(far(X + 2**20, X[:7] + 2**20), kernel(X, X[:7]), atol=1e-8)


def one_pivot_at_a_time(matrix, num):
    rest, index, columns = matrix.clone(), [], []
    for _ in range(num):
        n = int(rest.diagonal().argmax())
        column = rest[:, n] / rest[n, n].sqrt()
        rest = rest - torch.outer(column, column)
        index.append(n)
        columns.append(column)
    return index, torch.stack(columns, 1)[index]


def test_pivots():
    matrix = Matern52(X.mean(0), LENGTHS, 3.0)(X, X)
    index, factor = pivoted_cholesky(matrix, 10)
    expected, columns = one_pivot_at_a_time(matrix, 10)
    assert index.tolist() == expected
    assert torch.allclose(factor, columns, atol=1e-10)
    assert torch.allclose(factor @ factor.mT, matrix[index][:, index], atol=1e-12)


def test_duplicates_are_no_pivots():
    matrix = Matern52(X.mean(0), LENGTHS, 3.0)(X.repeat(2, 1), X.repeat(2, 1))
    index, _ = pivoted_cholesky(matrix, 80)
    assert len(index) == 40 and len(set((index % 40).tolist())) == 40
    assert len(pivoted_cholesky(matrix, 80, tolerance=0.5)[0]) < 40
