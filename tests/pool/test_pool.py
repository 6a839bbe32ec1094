"""Pools: every form gives the same rows, in the same order, in chunks of any size."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coresift
from coresift import InputError, select
from coresift.pool import ArrayPool, ArrowPool, NumpyPool, Part, Pool, as_pool, blocks, read
from coresift.posteriors import BayesianLinearRegression

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


def numpy_folder(path):
    (path / "parts").mkdir(exist_ok=True)
    for part, start in enumerate(range(0, 50, 20)):
        np.save(path / "parts" / f"part-{part}.npy", ROWS[start : start + 20])
    return as_pool(path / "parts")


def part(path):
    return Part(as_pool(np.concatenate([ROWS[:7], ROWS, ROWS[:3]])), 7, 57)


def part_of_folder(path):
    return Part(NumpyPool(numpy_folder(path).path, chunk_size=3), 0, 50)


def arrow(path):
    pyarrow.feather.write_feather(table(), path / "pool.arrow", compression="uncompressed")
    return as_pool(str(path / "pool.arrow"))


FORMS = [array, tensor, memory_map, parquet, parquet_folder, numpy_folder, arrow, part, part_of_folder]


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


def test_chunks_of_long_rows_are_short(tmp_path):
    """Bytes become eight times as many: a chunk of large images would not fit otherwise."""
    np.save(tmp_path / "images.npy", np.ones((300, 3, 128, 128), dtype=np.uint8))
    sizes = [len(chunk) for chunk in as_pool(tmp_path / "images.npy").chunks()]
    assert sum(sizes) == 300 and max(sizes) * 3 * 128 * 128 <= 2**23


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


@pytest.mark.parametrize("form", FORMS)
def test_parts_and_copies_in_other_processes(form, tmp_path):
    """Any consecutive rows are a pool, also after a journey; files travel by name."""
    pool = form(tmp_path)
    for start, stop in ((0, 50), (0, 1), (19, 21), (20, 40), (43, 50)):
        for copy in (Part(pool, start, stop), pickle.loads(pickle.dumps(Part(pool, start, stop)))):
            assert len(copy) == stop - start
            np.testing.assert_array_equal(
                torch.cat([chunk.x for chunk in copy.chunks()]).numpy(), ROWS[start:stop]
            )
            np.testing.assert_array_equal(copy.take([stop - start - 1, 0]).numpy(), ROWS[[stop - 1, start]])
            with pytest.raises(IndexError):
                copy.take([stop - start])


def test_what_a_pool_takes_along(tmp_path):
    rows = np.random.default_rng(0).normal(size=(1000, 3))
    np.save(tmp_path / "pool.npy", rows)
    np.save(tmp_path / "columns.npy", np.asfortranarray(rows))
    for name in ("pool.npy", "columns.npy"):
        pool = as_pool(tmp_path / name)
        sent = pickle.dumps(pool)
        assert len(sent) < 1000
        np.testing.assert_array_equal(next(pickle.loads(sent).chunks()).x.numpy(), rows)
    cut = ArrayPool(as_pool(tmp_path / "pool.npy").rows[500:])
    assert len(pickle.dumps(cut)) < 1000
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(cut)).take([3]).numpy(), rows[[503]])
    for held in (rows, torch.from_numpy(rows)):
        assert len(pickle.dumps(Part(as_pool(held), 990, 1000))) < 2000


def test_a_row_that_is_not_finite_is_named_by_its_place_in_the_whole():
    rows = ROWS.copy()
    rows[33, 1] = np.inf
    with pytest.raises(coresift.InputError, match="inf in row 33, column 1"):
        list(read(Part(as_pool(rows), 20, 50)))
    with pytest.raises(coresift.InputError, match="inf in row 33, column 1"):
        list(read(pickle.loads(pickle.dumps(Part(as_pool(rows), 20, 50)))))


def test_numpy_files_that_do_not_go_together(tmp_path):
    np.save(tmp_path / "a.npy", ROWS.astype(np.float32))
    np.save(tmp_path / "b.npy", np.arange(6).reshape(2, 3))
    pool = as_pool(tmp_path)
    assert {chunk.x.dtype for chunk in pool.chunks()} == {torch.float64}
    assert pool.take([51, 0]).dtype == torch.float64
    np.save(tmp_path / "c.npy", ROWS[:, :2])
    with pytest.raises(
        coresift.InputError, match=r"rows of .*c.npy have shape \(2,\), but those of a.npy \(3,\)"
    ):
        as_pool(tmp_path)
    np.save(tmp_path / "c.npy", ROWS[:0])
    with pytest.raises(coresift.InputError, match=r"c.npy: the pool is empty"):
        as_pool(tmp_path)
    (tmp_path / "c.npy").write_text("no array")
    with pytest.raises(coresift.InputError, match=r"cannot read .*c.npy"):
        as_pool(tmp_path)
    (tmp_path / "c.npy").rename(tmp_path / "c.parquet")
    with pytest.raises(coresift.InputError, match=r"mixes \.npy with other files"):
        as_pool(tmp_path)


def resident():
    """Bytes of memory that this process holds."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc/self/status")
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_file_does_not_stay_in_memory(order, tmp_path):
    """300 MB are read in blocks, and no more than a few of these are held at any time."""
    size = 2_500_000
    shape = (size, 30)
    rows = np.lib.format.open_memmap(
        tmp_path / "pool.npy", "w+", np.float32, shape, fortran_order=order == "F"
    )
    rows[::1000] = 1.0
    rows.flush()
    del rows
    pool = as_pool(tmp_path / "pool.npy")
    before = resident()
    most = ones = 0
    for block in read(pool):
        ones += int(block.x[:, 0].sum())
        most = max(most, resident() - before)
    pool.take(np.arange(0, size, 100))
    assert ones == size // 1000
    assert max(most, resident() - before) < 60e6


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_file_that_is_cut_short_while_it_is_mapped(is_folder, tmp_path):
    """Reading beyond its end would kill the program, with nobody to say why."""
    file = tmp_path / "pool.npy"
    np.save(file, np.ones((20_000, 3)))
    pool = as_pool(tmp_path if is_folder else file)
    pools = [pool] if is_folder else [pool, ArrayPool(pool.rows[10:]), Part(pool, 5, 20_000)]
    chunks = [one.chunks_from(0) if hasattr(one, "chunks_from") else one.chunks() for one in pools]
    os.truncate(file, 5_000)
    for one, unread in zip(pools, chunks, strict=True):
        for read_it in (lambda one=one: one.take([19_000]), lambda unread=unread: list(unread)):
            with pytest.raises(InputError, match=r"480,128 bytes and now 5,000|mmap length is greater"):
                read_it()


def test_data_frames():
    """Whole numbers, true and false and gaps are numbers; texts and dates are not, and are named."""
    rows = np.random.default_rng(0).normal(size=(12, 2))
    frame = pd.DataFrame(rows, columns=["a", "b"], index=np.arange(12)[::-1])
    np.testing.assert_array_equal(as_pool(frame).take(range(12)), rows)
    assert as_pool(frame.astype("float32")).take([0]).dtype == torch.float32
    twice = pd.concat([frame, frame], axis=1)  # columns of the same names
    np.testing.assert_array_equal(as_pool(twice).take(range(12)), np.hstack([rows, rows]))
    mixed = frame.assign(
        whole=range(12),
        sign=frame.a > 0,
        nullable=pd.array(range(12), dtype="Int64"),
        arrow=pd.array(rows[:, 0], dtype="float64[pyarrow]"),
    )
    expected = np.column_stack([rows, range(12), rows[:, 0] > 0, range(12), rows[:, 0]])
    np.testing.assert_array_equal(as_pool(mixed).take(range(12)), expected)
    gap = frame.assign(n=pd.array([1, 2, 3, None, *range(8)], dtype="Int64"))
    with pytest.raises(InputError, match="the pool holds nan in row 3, column 2"):
        select(gap, strategy="k-center", budget=2)
    for wrong in (["x"] * 12, ["7"] * 12, pd.Categorical(["u", "v"] * 6), pd.Timestamp("2020-01-01")):
        with pytest.raises(InputError, match=r"column 'c' holds .*, expected numbers"):
            as_pool(frame.assign(c=wrong))
    labelled = select(mixed, strategy="k-center", budget=3, labelled=mixed[:4])
    assert (
        labelled.index.tolist()
        == select(expected, strategy="k-center", budget=3, labelled=expected[:4]).index.tolist()
    )
    posterior = BayesianLinearRegression(noise_variance=1.0).fit(mixed, frame.a)
    plain = BayesianLinearRegression(noise_variance=1.0).fit(
        torch.from_numpy(expected), torch.from_numpy(rows[:, 0])
    )
    torch.testing.assert_close(posterior.mean, plain.mean)


def test_one_label_for_many_rows_is_refused():
    with pytest.raises(InputError, match=r"y has shape \(\), expected \(3\)"):
        BayesianLinearRegression(noise_variance=1.0).fit(np.ones((3, 2)), 5.0)
