"""Bring a scikit-learn ensemble, and pick 20 rows of a pool to label next.

Usage: python examples/bagging.py
"""

import numpy as np
from sklearn.ensemble import BaggingRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import coresift
from coresift.bench.data import load_energy

x, y = load_energy()
order = np.random.default_rng(0).permutation(len(x))
labelled, pool = order[:60], order[60:]

# A hundred members, each fitted to its own draw of the labelled rows: where they disagree, ask.
member = make_pipeline(StandardScaler(), KNeighborsRegressor(3))
ensemble = BaggingRegressor(member, 100, oob_score=True, random_state=0).fit(x[labelled], y[labelled])
means_K_N = np.stack([member.predict(x[pool]) for member in ensemble.estimators_])

# Such members give no variance of their own: how far they miss rows that they have not seen will do.
noise_variance = np.mean((ensemble.oob_prediction_ - y[labelled]) ** 2)
batch = coresift.select(means=means_K_N, variances=noise_variance, budget=20)

print("label these rows next:", *np.sort(pool[batch.index]))
