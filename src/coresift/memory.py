"""Keep a memory limit: what the caller's arrays, the selector and the batch leave for a space."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coresift import limits
from coresift.checks import as_bytes, check_room
from coresift.errors import InputError, shown
from coresift.pool import as_pool
from coresift.posteriors.samples import numbers_a_row, rows_at_a_time
from coresift.scores import Score
from coresift.selectors import KMedoids
from coresift.spaces.base import KernelSpace, Problem
from coresift.spaces.features import model_features
from coresift.spaces.vectors import VectorSpace, bytes_per_vector
from coresift.strategies import Strategy


def held_bytes() -> int:
    """Return how many bytes the process holds besides the libraries, such as the caller's arrays.

    Files that are mapped into memory do not count. Where the system does not tell, it is zero.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        kilobytes = sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    except (OSError, ValueError, IndexError):
        return 0
    return max(1024 * kilobytes - limits.IMPORTED_BYTES, 0)


def check_memory(memory: int | str, size: int, held: int = 0) -> int:
    """Return what is left of a memory limit in bytes, where the process holds ``held`` already.

    Raise where that is too little for a pool of ``size`` points.

    >>> check_memory("2GB", 1000), check_memory("512 MB", 1000)
    (2000000000, 512000000)
    """
    limit = _parse_bytes(memory)
    if limit <= 0:
        raise InputError(f"memory is {shown(memory)}, expected '2GB', '500MB' or a number of bytes")
    least = limits.LIBRARY_BYTES + 4 * size  # a few bytes for each point
    if limit - held < least:
        besides = f", and the process holds {as_bytes(held)} already" if held else ""
        needed = f"a pool of {size:,} points needs at least {least / 1e9:.1f} GB"
        raise InputError(f"memory is {memory!r}, but {needed}{besides}")
    return limit - held


def _parse_bytes(memory: int | str) -> int:
    """Return the number of bytes that ``memory`` names, or 0 where it names none."""
    text = "" if isinstance(memory, bool) else str(memory).strip().upper()
    match = re.fullmatch(r"([\d.]+(?:E\+?\d+)?) ?([KMGT]?)(I?)B?", text, re.ASCII)
    if match is None:
        return 0
    unit = (1024 if match[3] else 1000) ** " KMGT".index(match[2] or " ")
    try:
        return int(float(match[1]) * unit)
    except (ValueError, OverflowError):  # for example "1.2.3GB" and "1e400"
        return 0


def left_for_space(memory: int, strategy: Strategy, problem: Problem, taken: int) -> int:
    """Return the bytes of ``memory`` that blocks of predictions, the selector and the batch leave.

    They are for the libraries and the space. Selectors keep the vectors of the ``taken`` points, in the batch
    or pending. Raise where something does not fit, or where all vectors must be in memory and do not fit.
    """
    size = len(problem.pool)
    memory -= _bytes_of_blocks(problem)
    if isinstance(strategy.selector, KMedoids):
        return _left_by_medoids(strategy.selector, memory, problem, taken)
    if each := strategy.selector.bytes_per_point:
        check_room(size, each, memory, "raise the limit")
        memory -= each * size
    space = _space_of_one(strategy, problem)
    if isinstance(space, Score):
        needed = limits.LIBRARY_BYTES + space.bytes_of_matrices
        if needed > memory:
            raise InputError(
                f"this strategy needs {as_bytes(needed)} for its matrices, with the libraries, and has "
                f"{as_bytes(memory)} of the limit left; raise the limit, or try 'predictive-lcmd'"
            )
        check_room(size, space.bytes_per_point, memory - space.bytes_of_matrices, "raise the limit")
    if isinstance(space, KernelSpace):
        advice = "try 'predictive-lcmd', or 'acs-fw' with exact=False, whose vectors go to a file"
        check_room(size, space.bytes_per_point, memory, advice)
    if not isinstance(space, VectorSpace):
        return memory
    width = space.columns.shape[0]
    copies = limits.COPIES_TAKEN * 8 * width * taken + strategy.selector.bytes_per_pair * width**2
    needed, advice = limits.LIBRARY_BYTES + copies, "raise the limit, or choose fewer points at a time"
    if not strategy.streams:
        own = strategy.selector.copies_of_vectors * width * space.columns.dtype.itemsize
        needed += (bytes_per_vector(width, space.columns.dtype) + own) * size
        advice = "raise the limit, or try 'acs-fw' or 'predictive-lcmd'"
    if needed > memory:
        raise InputError(
            f"this strategy needs {as_bytes(needed)} for {size:,} vectors of {width:,} numbers and a batch "
            f"of {taken:,}, with the libraries, and has {as_bytes(memory)} of the limit left; {advice}"
        )
    return memory - copies


def _bytes_of_blocks(problem: Problem) -> int:
    """Return the bytes that blocks of predictions need beyond what counts as the libraries'."""
    if problem.model is None:
        return 0
    theta = problem.model.sample(problem.num_samples, torch.Generator())
    each = problem.model.conditional(problem.pool.take([0]), theta)
    numbers = numbers_a_row(each) * rows_at_a_time(each, limits.POOL_BLOCK)
    if numbers <= limits.MAPPED_NUMBERS:
        return 0
    return min(limits.BLOCK_NUMBER_BYTES * numbers, limits.MOST_BLOCK_BYTES)


def _left_by_medoids(selector: KMedoids, memory: int, problem: Problem, taken: int) -> int:
    """Without room for copies of all vectors, these go to a file, and a sample of them is clustered."""
    source = problem.pool if problem.features is None else problem.features
    vector = model_features(problem.model if problem.features is None else None, source.take([0]))
    size = len(problem.pool)
    clustered = limits.MEDOID_BYTES + limits.MEDOID_COPIES * vector.nbytes  # for each point
    if limits.LIBRARY_BYTES + clustered * size <= memory:
        return memory - clustered * size
    sample = min(size, selector.sample_size(taken))
    check_room(sample, clustered, memory, "raise the limit, or try 'k-center', which needs less")
    return limits.LIBRARY_BYTES


def _space_of_one(strategy: Strategy, problem: Problem) -> Any:
    """Build the space or score of the first point alone, to see what a point needs."""
    alone = replace(
        problem,
        pool=as_pool(problem.pool.take([0])),
        features=None if problem.features is None else as_pool(problem.features.take([0])),
        labelled=None,
        labelled_features=None,
        generator=problem.generator.clone_state(),
        memory=None,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return strategy.build(alone)
