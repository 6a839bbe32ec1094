"""Set the sizes that speed and memory depend on: block sizes, bytes per point, thresholds.

None of these numbers changes what is chosen, unless its comment says so. Code takes them as default values of
arguments, so that tests can pass others. One section for each package.
"""

# --- pool

# --- posteriors

# --- spaces

# --- search

# --- scores and selectors

# --- strategies and select

# --- estimators

# --- labelling

# --- report

# --- bench and cli

SMALL_TABLE = 50_000  # rows below which replays choose on the CPU, also where models are trained on a GPU
