"""A stand-in for the year table, for trying things at its full size without its file."""

from __future__ import annotations

import numpy as np

from coresift.bench.data.readers import Numbers, Table


def generated_year(rows: int = 515_345, seed: int = 0) -> Table:
    """Made-up songs in the form of the year table: nothing here was measured, so report no results on it.

    Like the real features, 12 averages of timbre are correlated, 12 variances are positive and 66
    covariances have heavy tails, each column on its own scale: x (rows, 90) in float32. The years (rows,) lie
    between 1922 and 2011, most after 1995. They depend on 6 features, not linearly, and on noise: the best
    possible predictor has an R² of about 0.35.

    >>> table = generated_year(rows=1000)
    >>> table.x.shape, float(table.y.min()) >= 1922, float(table.y.max()) <= 2011
    ((1000, 90), True, True)
    """
    generator = np.random.default_rng(seed)
    # float32 throughout: the table alone takes 190 MB.
    x = generator.standard_normal((rows, 90), dtype=np.float32)
    averages, variances, covariances = x[:, :12], x[:, 12:24], x[:, 24:]
    averages[:] = averages @ _mixing(12, generator)
    # Loud songs vary more in everything: one factor a row gives the tails their weight.
    loudness = generator.standard_normal((rows, 1), dtype=np.float32)
    variances[:] = 0.5 * loudness + 0.5 * (variances @ _mixing(12, generator))
    covariances[:] = np.exp(0.5 * loudness) * (covariances @ _mixing(66, generator))

    signal = np.tanh(2 * averages[:, 0]) + averages[:, 1] * averages[:, 2] + np.abs(averages[:, 5])
    signal += np.sin(3 * variances[:, 0]) + variances[:, 1]
    signal = (signal - signal.mean()) / signal.std()
    noise = generator.standard_normal(rows, dtype=np.float32)
    age = np.exp(2.3 - 0.75 * (np.sqrt(0.42) * signal + np.sqrt(0.58) * noise))
    y = np.clip(np.round(2012 - age), 1922, 2011).astype(np.float64)

    np.exp(variances, out=variances)
    x *= np.geomspace(5, 500, 90, dtype=np.float32)[generator.permutation(90)]
    averages[:, 0] += 43  # the average loudness, the one column far from zero
    return Table("generated-year", x, y, "year (generated)")


def _mixing(size: int, generator: np.random.Generator) -> Numbers:
    """A matrix (size, size) that turns independent unit normals into correlated ones."""
    matrix: Numbers = np.eye(size) + generator.standard_normal((size, size)) / np.sqrt(size)
    matrix /= np.linalg.norm(matrix, axis=0)
    return matrix.astype(np.float32)
