"""Set the sizes that speed and memory depend on: block sizes, bytes per point, thresholds.

None of these numbers changes what is chosen, unless its comment says so. Code takes them as default values of
arguments, so that tests can pass others. One section for each package.
"""

# --- memory, threads, progress
LIBRARY_BYTES = 480_000_000  # memory of the libraries and of the blocks that are worked on
SMALL_WORK = 1_000_000  # multiplications in one operation below which a second thread does not help
RECOUNT_SECONDS = 0.25  # the free cores are counted again after this time
MORE_LOOKS = 2  # further counts of running programs, where some seem to run
LOOK_SECONDS = 0.002  # time between these counts
WINDOW_SECONDS = 0.1  # time over which busy cores are measured; the system counts in hundredths of a second
OLD_SECONDS = 5.0  # an earlier measurement of busy cores is not used after this time
TOLERATED_SHARE = 0.3  # a core of which other programs use this share is free: small services always run
BAR_AFTER_SECONDS = 2.0  # a progress bar appears when work has taken this long
LINE_EVERY_SECONDS = 10.0  # shortest time between two lines in a log

# --- pool
POOL_BLOCK = 8192  # rows computed on at a time; the same for all pools, so chunk sizes do not change a batch
CHUNK_ROWS = 65536  # rows read from a pool at a time, by default
CHUNK_NUMBERS = 2**23  # numbers in a chunk, at most: 64 MB of float64

# --- posteriors
NETWORK_ROWS = 1024  # rows that a network is given at a time, at most
NETWORK_NUMBERS = 2**22  # numbers in these rows, at most: a wide network needs many times an image's memory
PREDICTIVE_NUMBERS = 2**23  # numbers that a predictive holds at a time: a quarter of a gigabyte in all
MAPPED_NUMBERS = 2**20  # numbers of a block of points that is mapped, as a rule
TRIAL_ROWS = 16  # rows passed to a function to count its numbers per row; one row would hide wrong shapes

# --- spaces
PROJECTED_WIDTH = 8192  # numbers of a point that are projected at a time
NUM_OUTCOMES = 256  # outcomes drawn where a divergence has no formula; changes what is chosen
GRADIENT_ROWS = 1024  # rows whose last-layer gradients are computed at a time
PROBIT_TILE = 256  # pairs are computed in squares of this many points, whose temporaries stay in cache
CLOSED_FORM_BYTES = 170  # memory of a point in a space of inner products, whose vectors are not stored

# --- search

# --- scores and selectors

# --- strategies and select

# --- estimators

# --- labelling

# --- report

# --- bench and cli
SMALL_TABLE = 50_000  # rows below which replays choose on the CPU, also where models are trained on a GPU
