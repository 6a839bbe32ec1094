"""The selectors that several tests walk through: a new one of a space or a score is added here once."""

from coresift.selectors import (
    GIGA,
    LCMD,
    FrankWolfe,
    GreedyLogDet,
    GumbelTopB,
    KCenter,
    KMeansPlusPlus,
    KMedoids,
    TopB,
    TypiClust,
    UniformRandom,
    VarianceReduction,
)

# They ask `cosine_search` or `centre_distances`: tested on a CPU, on a GPU and with vectors in a file. On
# Ray, strategies are tested: those with ``shards=True`` in `STRATEGIES`.
# Their batch is the same at any scale of the vectors.
SEARCHING = [FrankWolfe(), FrankWolfe(fill=False), GIGA(), LCMD(), KCenter(), KMeansPlusPlus()]
# They draw nothing at random and fill the batch. All of them are in OF_SPACES too.
STEADY = [
    FrankWolfe(),
    FrankWolfe(start="vertex"),
    GIGA(),
    KCenter(),
    LCMD(),
    GreedyLogDet(),
    VarianceReduction(),
]
# All that choose from a space of vectors.
OF_SPACES = [*STEADY, KMeansPlusPlus(), KMedoids(), TypiClust(), FrankWolfe(fill=False), GIGA(fill=False)]
OF_SCORES = [TopB(), GumbelTopB("power"), GumbelTopB("softmax"), GumbelTopB("softrank"), UniformRandom()]
