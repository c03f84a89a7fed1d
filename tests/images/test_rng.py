"""Random numbers as a pure function, the same for ever."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.images.rng import uniforms

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
int64s = st.integers(-(2**63), 2**63 - 1)


def splitmix64(z):
    """One step in Python's own integers (Steele, Lea, Flood 2014, figure 15), the constant added first."""
    z = (z + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def by_hand(seed, round_, sample, op, count):
    key = splitmix64(splitmix64(splitmix64(seed & MASK) ^ (round_ & MASK)) ^ op)
    row = splitmix64(((sample - 1) * GOLDEN + key) & MASK)
    return [(splitmix64((row + step * GOLDEN) & MASK) >> 11) * 2.0**-53 for step in range(count)]


def of(*samples):
    return np.array(samples, np.int64)


def test_the_numbers_never_change():
    assert uniforms(0, 0, of(0, 1), 0, 3).tolist() == [
        [0.3796756921450898, 0.5136698827367079, 0.8954052258173005],
        [0.47141042966848024, 0.7247520786262142, 0.3030308965844536],
    ]
    assert uniforms(1234, 7, of(99), 2, 4).tolist() == [
        [0.4179817526568622, 0.32388243396695326, 0.05198922214888613, 0.1685931578666453]
    ]
    assert uniforms(-1, 2**40, of(2**63 - 1), 1, 2).tolist() == [[0.29312245880934296, 0.3224023524030364]]


@given(int64s, st.integers(0, 2**63), st.integers(0, 2**63 - 1), st.integers(0, 20), st.integers(0, 25))
def test_they_are_splitmix64_s(seed, round_, sample, op, count):
    assert uniforms(seed, round_, of(sample), op, count).tolist() == [by_hand(seed, round_, sample, op, count)]


@given(int64s, st.lists(st.integers(0, 2**63 - 1), max_size=40), st.integers(1, 22))
def test_a_sample_s_numbers_do_not_depend_on_its_batch(seed, samples, count):
    batch = uniforms(seed, 3, of(*samples), 1, count)
    assert batch.shape == (len(samples), count)
    assert batch.dtype == np.float64
    for row, sample in zip(batch, samples, strict=True):
        assert row.tolist() == uniforms(seed, 3, of(sample), 1, count)[0].tolist()


def test_each_key_counts():
    base = uniforms(1, 2, of(3), 4, 8).tolist()
    for other in (uniforms(2, 2, of(3), 4, 8), uniforms(1, 3, of(3), 4, 8), uniforms(1, 2, of(4), 4, 8)):
        assert not set(base[0]) & set(other[0].tolist())
    assert not set(base[0]) & set(uniforms(1, 2, of(3), 5, 8)[0].tolist())
    assert uniforms(1, 2, of(3), 0, 1) != uniforms(2, 1, of(3), 0, 1)


def test_they_are_uniform_in_zero_to_one_and_independent():
    numbers = uniforms(42, 0, np.arange(20_000), 0, 10)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert len(np.unique(numbers)) == numbers.size
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    expected = numbers.size / 100
    assert (((counts - expected) ** 2) / expected).sum() < 160  # chi-square, 99 degrees of freedom: p < 0.0001
    correlation = np.corrcoef(numbers.T)
    assert np.abs(correlation - np.eye(10)).max() < 0.04
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.04  # neighbouring samples
    epochs = np.stack([uniforms(42, epoch, np.arange(20_000), 0, 1)[:, 0] for epoch in range(4)])
    assert np.abs(np.corrcoef(epochs) - np.eye(4)).max() < 0.04
