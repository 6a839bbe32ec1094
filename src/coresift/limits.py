"""Set the sizes that speed and memory depend on: block sizes, bytes per point, thresholds.

None of these numbers changes what is chosen, unless its comment says so. Code takes them as default values of
arguments, so that tests can pass others. One section for each package.
"""

# --- memory, threads, progress
LIBRARY_BYTES = 480_000_000  # memory of the libraries and of the blocks that are worked on
IMPORTED_BYTES = 250_000_000  # of these, what the libraries hold once imported, mapped files apart
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
FOURIER_FREQUENCIES = 1024  # of random draws of a Gaussian process; changes what is chosen
PIVOTS, PIVOT_CANDIDATES = 512, 2000  # of a Gaussian process on a pool; both change what is chosen
TRIAL_ROWS = 16  # rows passed to a function to count its numbers per row; one row would hide wrong shapes

# --- spaces
BLOCK_NUMBERS = 2**22  # numbers in a block of feature vectors or scored rows that is read, at most
MAPPED_ROWS = 1024  # rows whose predictions or gradients are computed at a time, at most
PROJECTED_WIDTH = 8192  # numbers of a point that are projected at a time
NUM_OUTCOMES = 256  # outcomes drawn where a divergence has no formula; changes what is chosen
PROBIT_TILE = 256  # pairs are computed in squares of this many points, whose temporaries stay in cache
CLOSED_FORM_BYTES = 170  # memory of a point in a space of inner products, whose vectors are not stored
BLOCK_OF_COLUMNS = 262144  # columns of a block in memory: what is computed from one stays in a cache
BLOCK_OF_COLUMNS_ON_GPU = 2**22  # on a GPU a block only bounds temporaries
NUMBERS_PER_POINT = 4  # numbers of the vectors' type that each point takes next to its vector
BYTES_PER_POINT = 14  # and bytes of other types
SPACE_WORKING_SET = 2**20  # numbers that a space holds in float64 at a time
SPACE_WORKING_SET_ON_GPU = 2**25
ANCHORS = 64  # labelled points looked at together: one pass over the pool serves them all
ANCHORS_ON_GPU = 1024
PRODUCTS = 2**21  # inner products of labelled points with the pool that are held at a time
PRODUCTS_ON_GPU = 2**28

# --- search
NEAR_TIES = 4096  # points within rounding of the best match that are looked at together
CLOSER_LOOK = 64  # best points of a scan by GIGA's score, which are compared in float64
DISTANCE_WORKING_SET = 2**19  # numbers that distances hold in float64 at a time: they stay in a cache
DISTANCE_WORKING_SET_ON_GPU = 2**23
GRAM_POINTS = 4096  # points of a space without stored vectors whose Gram matrix is decomposed
GATHER_LIMIT = 4  # with more than one point in so many to look at closely, look at all of them
NARROW_CONE = 0.9  # norm of the sum over sum of the norms, above which distances are measured from the mean

# How a scan is spread over a GPU. As many programs as can run at once: so each writes one partial maximum.
CUDA_BLOCK = 512  # points that a program reads at a time, a power of two
CUDA_ROWS = 16  # rows of a block that are loaded before the first is used, a power of two
CUDA_WARPS = 4  # of 32 threads, in a program
CUDA_PROGRAMS = 4  # for each multiprocessor
CUDA_GRAPH_STEPS = 32, 8, 1  # steps recorded into one CUDA graph
CUDA_RUN_LENGTH = 512  # steps made without asking the host
CUDA_TILE = 1024  # numbers of a vector that a program holds at a time
CUDA_SUM_COPIES = 8  # of the cluster sums, so that fewer programs wait to add to the same one

KEPT_VECTORS = 64  # points asked for together whose vectors the driver of a cluster keeps
SHARD_ATTEMPTS = 4  # times that a shard of a cluster is built before its loss is final

# --- scores and selectors
SHORTEST_RUN = 8  # steps looked ahead on a GPU, at least
LONGEST_RUN = 512  # and at most
BALD_NUMBERS = 2**24  # numbers that samples of a model return for a block of rows, at most
BALD_FEWEST_ROWS, BALD_MOST_ROWS = 16, 1024  # rows of such a block
TARGET_NUMBERS = (
    2**23
)  # numbers that samples predict for the targets of epig, at most; changes what is chosen
FISHER_WIDTH = 8192  # side of a matrix of Fisher information, whose numbers take 8 bytes, at most
JOINT_NUMBERS = 2**18  # probabilities of joint outcomes that are held at a time: they stay in a cache
PROBIT_NODES = 64  # nodes of the integral for probit regression
MEDOID_WORKING_SET = 2**19  # numbers of a temporary matrix of k-medoids: they stay in a cache
MEDOID_WORKING_SET_ON_GPU = 2**26
MOST_MIDDLES = 1024  # points nearest to a cluster's mean that may become its medoid; changes what is chosen
HERDED_POINTS = 4000  # points to be covered by uncertainty herding; changes what is chosen
HERDING_BLOCK = 256  # points whose gains are computed again together
TYPICAL_CANDIDATES = 2000  # points of a cluster whose typicality is computed; changes what is chosen
FEW_CLUSTERS = 50  # up to which each step of k-means looks at all points; changes what is chosen
LEAST_STEP = 1e-6  # share of the sum of a cluster's distances that a step of its medoid saves, at least
LEAST_GAIN = 1e-4  # share of the sum of all distances that jumps of medoids save; both change what is chosen

# --- strategies and select
GIGA_BYTES = LOG_DET_BYTES = 70  # memory of a point that these selectors need besides the space
FISHER_PAIR_BYTES = 80  # memory of a number of the Fisher information of a last layer
VARIANCE_PAIR_BYTES = 100  # memory of a pair of a vector's numbers, in a dozen matrices of float64
TOP_BYTES, GUMBEL_BYTES, RANDOM_BYTES = 50, 75, 40
MEDOID_BYTES, MEDOID_COPIES = 100, 12  # of a point; of its vector
TYPICLUST_BYTES, TYPICLUST_COPIES = 150, 8  # of a point; of its vector
HERDING_BYTES, HERDING_COPIES = 150, 4  # the same for uncertainty herding
COPIES_TAKEN = 2  # vectors in float64 that a selector holds for each point that it takes
BLOCK_NUMBER_BYTES, MOST_BLOCK_BYTES = 80, 250_000_000  # of a number in a large block of predictions; of all
SWAPPED_AXES = 10  # predictions of so many times more samples than points may have swapped axes

# --- estimators
RISING_SHARE = 0.2  # fraction of the epochs in which the learning rate of one cycle rises; changes the fit
LAST_RATE = 1e-5  # learning rate at the end of the cosine; changes the fit
ROW_NUMBERS_DRAWN = 2**20  # random numbers drawn at a time for the orders of coming epochs
STEPS_RECORDED = 64  # steps of an epoch that is recorded as one CUDA graph, at most
FEW_STEPS = 50  # steps after which batch norm's running statistics have forgotten their start, but for 0.5%
ROWS_CHECKED = 1000  # labelled rows on which a trained network's features are looked at
FEATURES_ALIVE = 0.1  # fraction of a network's features that differ between rows, below which we warn
IMAGES_CHECKED = 64  # images of a block whose units are checked
MASKED_NUMBERS = 2**20  # numbers a layer holds at a time under all dropout masks: those fit into a cache
LAST_LAYER_WEIGHTS = 2**14  # weights whose covariance takes 2 GiB, and its factor as much again
LAPLACE_ROWS = 1024  # rows run through the network at a time for the curvature
# Rows of a Gaussian process, drawn at random from larger sets: on which starts of the optimiser are compared,
# and with inducing points those that the kernel is fitted to. Both change the fit.
START_ROWS, KERNEL_ROWS = 500, 2000
# Automatic choice of a model; all change what is chosen.
LEAST_COMPARED = 10  # labels to compare models on, at least
COMPARED_LABELS = 5000  # and at most, drawn at random
COMPARED_FOLDS = 5  # parts of the labels, one of which is left out at a time
LEFT_OUT_LABELS = 200  # enough labels left out: of more labels, not each is
KERNEL_WORK = 40_000_000  # squared labels times columns of a Gaussian process, at most
BOOSTED_LABELS, BOOSTED_CLASSES = 40, 20  # labels that boosting needs, and most classes: each has its trees
MANY_LABELS = 1000  # from here on there are fewer epochs of more steps, so that any fit takes seconds
LEAST_EPOCHS, MOST_STEPS = 12, 10  # epochs, and steps of an epoch, of such a fit

# --- labelling
ITEM_NUMBERS = 4_000_000  # numbers read at a time from an array with wide rows
IMAGE_BLOCK = 32  # images read at a time: decoding is slow, and their pixels are held at once
SHOWN_NUMBERS = 20  # numbers of an array's row that are shown to people
CSV_BYTES = 8 << 20  # bytes that the CSV reader takes at a time
PARQUET_BYTES = 1 << 18  # bytes that the Parquet reader buffers
# Items that encoders are fitted to, which changes the features: 100,000 rows tell a mean to a third of a
# percent of its spread; texts and images take longer each, and networks longest.
SAMPLE_ROWS = 100_000
SAMPLE_TEXTS = 30_000
SAMPLE_IMAGES = 4_000
SAMPLE_EMBEDDED = 500
SAMPLE_NUMBERS = 20_000_000  # numbers in a sample of wide rows
CATEGORIES = 20  # columns made of one column of categories; changes the features
WORDS = 20_000  # words and pairs of words of texts; changes the features
WORD_DIRECTIONS = 100  # directions that these are reduced to; changes the features
IMAGE_SIDE = 32  # side that images are resized to for their colours and edges; changes the features
IMAGE_DIRECTIONS = 64  # directions that these are reduced to; changes the features
NETWORK_SIDE = 224  # side that images are resized to for a network that names none; changes the features
LARGEST_STD = 10  # largest feature made of a number, in standard deviations; changes the features
# Features with a standard deviation below this share of the numbers they were computed from are rounding, and
# a model that scales its inputs would blow them up to the size of the rest. Single precision, in which images
# and networks are, errs by 6e-8 of a number and some 1e-6 after a long sum; a word that two texts in 30,000
# have still makes a standard deviation of some 1e-3.
ROUNDING = 1e-5
ROUNDING_DOUBLE = 1e-13  # in double precision: 1e-13 is a thousand steps of rounding
NAMED_IMAGES = 10  # images named in a message that some cannot be read
ITEM_BLOCK = 65_536  # items whose nearest of a batch is found, or that a model predicts, at a time
CANDIDATES = 100_000  # items looked at for a batch, drawn at random from larger pools; changes what is chosen
COLD_CANDIDATES = 20_000  # the same without a model, where k-medoids take long; changes what is chosen
CALIBRATION_FOLDS = 5  # labels are left out in so many parts, one after the other
ENOUGH_LEFT_OUT = 400  # until so many were: they give the factor of calibration to 4%
LEAST_LABELS = 10  # with fewer labels a model knows too little to choose by; changes what is chosen
POOL_SAMPLE = 5000  # items over which a mean over the pool is taken
LEAST_FORECAST = 30  # with fewer labels a fold would test on a handful, and no error is forecast
LEAST_RANDOM = 50  # so many labels drawn at random make a test set
CURVE_LABELS = 3000  # labels that learning curves look at
CURVE_POINTS = 5  # points that a learning curve goes through
CURVE_REPLICATES = 400  # curves that are drawn
# Cross-validation is repeated with other folds and seeds, so many times at once: from one run to the next the
# forecast moves by a seventh of its interval. It is enough if plus and minus two standard errors are within
# this share of the interval.
CURVE_REPEATS = 4
MOST_CURVE_REPEATS = 12
CURVE_STEADY = 0.25
# A curve is flat if twice as many labels would take off less than this share of the error, and in nine draws
# of ten less than that.
FLAT = (0.05, 0.1)
# Stopping is advised after so many labels, where so many rounds agree, each with so many times the labels of
# the one before: with hardly any new labels they would say the same anyway.
LEAST_TO_STOP = 100
ROUNDS_TO_STOP = 3
NEW_LABELS_TO_STOP = 1.1
INFORMATION_SAMPLES = 1024  # posterior samples for a batch's share of the information
RANDOM_BATCHES = 5  # random batches that this share is compared with
MAP_ITEMS = 1200  # items on the map of the report, drawn at random from all
MAP_LABELLED = 400  # items on the map drawn from the labelled ones
MAP_NEAREST = 5  # items named as nearest to one of the batch
TASKS_SENT = 50  # tasks sent to Label Studio at a time
LIST_PAGE = 100  # rows in a page of a list from Label Studio
# Limits on answers, far beyond what Label Studio sends: a page of tasks has some 100 kB and a depth of 10.
ANSWER_BYTES = 64 * 2**20
ANSWER_DEPTH = 100
LIST_PAGES = 10_000
READ_SECONDS, CONNECT_SECONDS = 60.0, 10.0  # that a server may be silent, and take to be reached
REQUEST_SECONDS = 600.0  # that a request may take with its repetitions
LIST_SECONDS = 3600.0  # that all pages of a list may take
PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds before a request is repeated
SHOWN_CHARACTERS = 300  # characters of a server's text in a message
CLASS_CHARACTERS = 1000  # characters of a class that somebody typed in; longer texts are no classes

# --- report
CELL = 48  # characters of a table's cell that are shown unfolded
BATCH_TEXT, OTHER_TEXT = 2000, 240  # characters kept of an item of the batch, and of another one
NAME = 80  # characters kept of a name
COLUMNS, CLASSES = 3, 25  # columns of a batch's table and bars of a chart
THUMBNAIL, THUMBNAILS = 128, 1_500_000  # longest side in pixels; bytes of all thumbnails of a page

# --- bench and cli
MAP_DRAWS = 50  # random batches that the batches of a map are compared with
SMALL_TABLE = 50_000  # rows below which replays choose on the CPU, also where models are trained on a GPU
NAME_BYTES = 200  # bytes of a data set's or method's name, which becomes part of a file's; systems take 255
SHOWN_IDS = 100  # ids of a batch that are printed
SHOWN_CLASSES = 10  # classes that are named in a message
SHOWN_CORRECTIONS = 5  # corrections that are named in a message
