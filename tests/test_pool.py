"""Pools: every form gives the same rows, in the same order, in chunks of any size."""

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coresift
from coresift.models import BayesianLinearRegression
from coresift.pool import ArrayPool, ArrowPool, Pool, as_pool, blocks, read

ROWS = np.random.default_rng(0).normal(size=(50, 3))


def table(rows=ROWS):
    columns = {f"x{k}": rows[:, k] for k in range(3)}
    return pa.table({"id": [f"item-{n}" for n in range(len(rows))], **columns})


def array(path):
    return as_pool(ROWS)


def tensor(path):
    return as_pool(torch.from_numpy(ROWS))


def memory_map(path):
    np.save(path / "pool.npy", ROWS)
    return as_pool(path / "pool.npy")


def parquet(path):
    pyarrow.parquet.write_table(table(), path / "pool.parquet", row_group_size=8)
    return as_pool(path / "pool.parquet")


def parquet_folder(path):
    for part, start in enumerate(range(0, 50, 20)):
        pyarrow.parquet.write_table(table(ROWS[start : start + 20]), path / f"part-{part}.parquet")
    (path / "_SUCCESS").touch()
    return ArrowPool(path, ["x0", "x1", "x2"], chunk_size=7)


def arrow(path):
    pyarrow.feather.write_feather(table(), path / "pool.arrow", compression="uncompressed")
    return as_pool(str(path / "pool.arrow"))


FORMS = [array, tensor, memory_map, parquet, parquet_folder, arrow]


@pytest.mark.parametrize("form", FORMS)
def test_one_face_over_all_forms(form, tmp_path):
    pool = form(tmp_path)
    assert isinstance(pool, Pool)
    assert len(pool) == 50
    for _ in range(2):
        chunks = list(pool.chunks())
        np.testing.assert_array_equal(torch.cat([chunk.x for chunk in chunks]).numpy(), ROWS)
        assert [chunk.start for chunk in chunks] == np.cumsum([0, *map(len, chunks)])[:-1].tolist()
    for index in ([3], [49, 0, 21, 21, 20], [], np.arange(50)[::-1]):
        np.testing.assert_array_equal(pool.take(index).numpy(), ROWS[np.asarray(index, dtype=int)])


@pytest.mark.parametrize("form", FORMS)
def test_the_same_batch_from_every_form(form, tmp_path):
    posterior = BayesianLinearRegression(noise_variance=1.0).fit(ROWS[:5], ROWS[:5, 0])
    for strategy in ("acs-fw", "maxent", "acs-lcmd", "random"):
        whole = coresift.select(ROWS, posterior=posterior, budget=6, strategy=strategy)
        batch = coresift.select(form(tmp_path), posterior=posterior, budget=6, strategy=strategy)
        assert batch.index.tolist() == whole.index.tolist()


@given(size=st.integers(1, 60), chunk=st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_blocks_are_of_one_size_whatever_the_chunks(size, chunk):
    parts = list(blocks(ArrayPool(ROWS, chunk), size))
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert [part.start for part in parts] == list(range(0, 50, size))
    np.testing.assert_array_equal(torch.cat([part.x for part in parts]).numpy(), ROWS)


def test_a_memory_map_is_not_read_at_once(tmp_path):
    np.save(tmp_path / "pool.npy", ROWS)
    pool = as_pool(tmp_path / "pool.npy")
    assert isinstance(pool.rows, np.memmap)


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[::-1],
        ROWS.T.copy().T,
        ROWS.astype(">f8"),
        ROWS.astype(np.float16),
        (ROWS * 10).astype(np.int32),
        ROWS > 0,
    ],
    ids=["reversed", "fortran", "big-endian", "half", "integers", "booleans"],
)
def test_odd_arrays(rows):
    (chunk,) = as_pool(rows).chunks()
    assert chunk.x.is_floating_point()
    np.testing.assert_array_equal(chunk.x.numpy(), rows.astype(chunk.x.numpy().dtype))


def test_files_whose_types_differ(tmp_path):
    """Integers in one file, fractions in the next, nothing but nulls in a third: one type for all."""
    for number, column in enumerate((pa.array([1, 2]), pa.array([0.1, 0.2], pa.float32()), pa.array([0.3]))):
        pyarrow.parquet.write_table(
            pa.table({"a": column, "b": [True] * len(column)}), tmp_path / f"{number}.parquet"
        )
    pool = as_pool(tmp_path)
    rows = torch.cat([chunk.x for chunk in pool.chunks()])
    assert rows[:, 0].tolist() == [1, 2, np.float32(0.1), np.float32(0.2), 0.3]
    assert rows[:, 1].tolist() == [1] * 5
    assert torch.equal(pool.take([4, 2, 0]), rows[[4, 2, 0]])
    with pytest.raises(IndexError):
        pool.take([5])


def test_masked_values_are_missing():
    rows = np.ma.masked_array(ROWS, mask=np.zeros_like(ROWS, dtype=bool))
    rows.mask[4, 2] = True
    with pytest.raises(coresift.InputError, match="nan in row 4, column 2"):
        list(read(as_pool(rows)))


def test_integers_beside_floats_in_parquet(tmp_path):
    pyarrow.parquet.write_table(pa.table({"a": [1, 2, 3], "b": [0.5, None, 1.5]}), tmp_path / "pool.parquet")
    pool = as_pool(tmp_path / "pool.parquet")
    assert next(pool.chunks()).x[:, 0].tolist() == [1, 2, 3]
    with pytest.raises(coresift.InputError, match="nan in row 1, column 1"):
        list(read(pool))
