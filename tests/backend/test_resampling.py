"""Resampling weights: the generator's known answers, a literal implementation, the same bits everywhere, the laws."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from kcalib import _native
from kcalib._backend.random import KINDS, Weights, draw_label_batches

HEADERS = Path(__file__).parents[2] / "src/include"
SEEDS = (2**32 + 5, 2**64 - 1)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 as the paper has it."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


def word(kind: str, seed: int, replicate: int, index: int) -> int:
    """Word `index` of a replicate: half a Philox output, the first word of it the lower one."""
    pair, half = divmod(index, 2)
    x = philox([pair % 2**32, pair >> 32, replicate, KINDS[kind]], [seed % 2**32, seed >> 32])
    return x[2 * half] + 2**32 * x[2 * half + 1]


def tail(word: int) -> float:
    """The probability of a Gaussian weight's tail: exact."""
    return (2 * (word >> 12) + 1) * 2.0**-54


def literal(kind: str, n: int, replicates: range, seed: int) -> np.ndarray:
    weights = np.zeros((n, len(replicates)))
    for column, b in enumerate(replicates):
        for row in range(n):
            if kind == "multinomial":
                weights[word(kind, seed, b, row) * n >> 64, column] += 1
            elif kind == "rademacher":
                weights[row, column] = 1 - 2 * (word(kind, seed, b // 128, 2 * row + b // 64 % 2) >> b % 64 & 1)
            else:
                x = word(kind, seed, b, row)
                weights[row, column] = tail(x) * (1 if x % 2 else -1)
    return np.copysign(stats.norm.ppf(np.abs(weights)), -weights) if kind == "gaussian" else weights


def weights_at(kind: str, n: int, begin: int, end: int, seed: int, dtype: type = np.float64) -> np.ndarray:
    out = np.empty((n, end - begin), dtype)
    _native.fill_weights(KINDS[kind], seed, begin, out, _native.RunOptions(1))
    return out


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # kat_vectors of Random123
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_answers(counter, key, answer, scalar_code):
    c, k, x = ([int(part, 16) for part in text.split()] for text in (counter, key, answer))
    assert philox(c, k) == x
    words = (ctypes.c_uint64 * 4)(*c)
    scalar_code.philox4x32(k[0] + 2**32 * k[1], words)
    assert [w % 2**32 for w in words] == x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_weights_are_those_of_the_literal_implementation(kind, seed):
    for n, replicates in ((1, range(3)), (2, range(9)), (131, range(2**32 - 11, 2**32)), (300, range(1, 2))):
        found = Weights(kind, n, 2**32, seed).values(replicates.start, replicates.stop)
        if kind == "gaussian":  # scipy's quantile has errors of its own
            np.testing.assert_allclose(found, literal(kind, n, replicates, seed), rtol=1e-14)
        else:
            np.testing.assert_array_equal(found, literal(kind, n, replicates, seed))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_the_same_bits_for_any_threads(kind):
    for n, begin, end in ((1, 0, 1), (129, 0, 7), (1000, 3, 580), (70_001, 5, 22)):
        weights = Weights(kind, n, 1000, 7)
        expected = weights.values(begin, end, threads=1)
        for threads in (2, 3, 7):
            np.testing.assert_array_equal(weights.values(begin, end, threads=threads), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_of_replicates_fit_together(kind):
    weights = Weights(kind, 200, 40, 11)
    whole = weights.values()
    assert whole.shape == (200, 40) and whole.flags.c_contiguous
    for begin, end in ((3, 5), (0, 1), (39, 40), (17, 33), (8, 8)):
        np.testing.assert_array_equal(weights.values(begin, end), whole[:, begin:end])
    if kind != "multinomial":  # the first rows of a larger n: weights do not depend on n
        np.testing.assert_array_equal(Weights(kind, 131, 40, 11).values(), whole[:131])


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_float64_rounded(kind):
    double, single = (weights_at(kind, 301, 2, 25, 3, dtype) for dtype in (np.float64, np.float32))
    np.testing.assert_array_equal(single, double.astype(np.float32))


@pytest.fixture(scope="module")
def scalar_code(tmp_path_factory):
    """The header compiled for plain numbers, as a GPU compiler does it: without any other header."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("scalar")
    (folder / "scalar.cpp").write_text("""
        #include "kcalib/resampling.h"
        using namespace kcalib;
        extern "C" {
        void philox4x32(Word seed, Word* c) { philox<Word>(seed, c); }
        Word word(Word seed, unsigned kind, Word replicate, Word index) {
          return random_word(seed, WeightKind(kind), replicate, index);
        }
        Word sign_word(Word seed, Word replicate, Word row) { return kcalib::sign_word(seed, replicate, row); }
        double sign(Word word, int bit) { return rademacher<double>(word, bit); }
        double normal(Word word) { return normal_deviate(word); }
        Word row(Word word, Word n) { return drawn_row(word, n); }
        }
    """)
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-nostdinc", "-nostdinc++", "-shared", "-fPIC", f"-I{HEADERS}"]
    subprocess.run([compiler, *flags, "scalar.cpp", "-o", "scalar.so"], cwd=folder, check=True)
    code = ctypes.CDLL(str(folder / "scalar.so"))
    u64 = ctypes.c_uint64
    code.philox4x32.argtypes, code.philox4x32.restype = (u64, ctypes.POINTER(u64)), None
    code.word.argtypes, code.word.restype = (u64, ctypes.c_uint, u64, u64), u64
    code.sign_word.argtypes, code.sign_word.restype = (u64, u64, u64), u64
    code.sign.argtypes, code.sign.restype = (u64, ctypes.c_int), ctypes.c_double
    code.normal.argtypes, code.normal.restype = (u64,), ctypes.c_double
    code.row.argtypes, code.row.restype = (u64, u64), u64
    return code


def test_scalar_code_gives_the_bits_of_the_packs(scalar_code):
    n, seed, replicates = 2000, 5, range(3, 6)
    normal, signs, counts = (Weights(kind, n, 6, seed).values(3) for kind in ("gaussian", "rademacher", "multinomial"))
    for column, b in enumerate(replicates):
        words = {k: [scalar_code.word(seed, number, b, i) for i in range(n)] for k, number in KINDS.items()}
        assert [scalar_code.normal(w) for w in words["gaussian"]] == normal[:, column].tolist()
        of_rows = [scalar_code.sign(scalar_code.sign_word(seed, b, i), b % 64) for i in range(n)]
        assert of_rows == signs[:, column].tolist()
        drawn = [scalar_code.row(w, n) for w in words["multinomial"]]
        assert np.bincount(drawn, minlength=n).tolist() == counts[:, column].tolist()


def test_drawn_row_is_the_upper_half_of_the_product(scalar_code):
    rng = np.random.default_rng(0)
    words = [int(w) for w in rng.integers(0, 2**64, 200, dtype=np.uint64)] + [0, 2**64 - 1, 2**63, 2**32, 2**32 - 1]
    for n in (1, 2, 3, 1000, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40 - 1, 2**40):
        assert [scalar_code.row(w, n) for w in words] == [w * n >> 64 for w in words]


def test_normal_quantile_is_right_to_a_few_ulp(scalar_code):
    """AS 241 has relative error 1e-16, and some ten roundings follow."""
    mpmath = pytest.importorskip("mpmath")
    rng = np.random.default_rng(0)
    words = [int(w) for w in rng.integers(0, 2**64, 100, dtype=np.uint64)]
    words += [int(w) for w in 2.0 ** rng.uniform(12, 64, 100)]
    words += [0, 1, 4095, 4096, 2**64 - 1, 2**64 - 2]  # the ends of both tails, the middle
    # around the borders of the three formulas: v = 0.075 and v = 2^-36
    words += [(int(v * 2**53) + shift) << 12 for v in (0.075, 2.0**-36) for shift in range(-5, 6)]
    for w in words:
        with mpmath.workdps(40):
            x = (1 if w % 2 else -1) * -mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(tail(w)))
            assert abs(scalar_code.normal(w) / x - 1) < 2e-15, w


def test_the_far_tail_has_the_same_bits_in_packs(scalar_code):
    """A word with v < 2^-36 is drawn once in 3e10: these were searched for."""
    for seed, replicate, row in ((208, 23163177, 0), (214, 79942218, 1)):
        w = word("gaussian", seed, replicate, row)
        assert tail(w) < 2.0**-36
        found = weights_at("gaussian", row + 1, replicate, replicate + 1, seed)[row, 0]
        assert found == scalar_code.normal(w) and 6.6 < found < 8.3


def test_the_header_needs_no_other():
    for name in ("math.h", "resampling.h"):
        text = re.sub(r"//.*", "", (HEADERS / "kcalib" / name).read_text())
        assert "std::" not in text and set(re.findall(r"#include (\S+)", text)) <= {'"kcalib/math.h"'}


# The laws. Seeds are fixed; a bound of SIGMAS standard deviations of the law would fail for one
# seed in 10^8, for each of the some 10^4 numbers compared.
SIGMAS = 6.0


def test_signs_are_fair_and_independent():
    n, replicates = 4096, 64
    signs = Weights("rademacher", n, replicates, 0).values()
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.sum()) < SIGMAS * math.sqrt(n * replicates)
    assert np.abs(signs.sum(axis=0)).max() < SIGMAS * math.sqrt(n)
    assert np.abs(signs.sum(axis=1)).max() < SIGMAS * math.sqrt(replicates)
    check_uncorrelated(signs)


def test_gaussian_weights_are_standard_normal_and_independent():
    weights = Weights("gaussian", 4096, 64, 0).values()
    z = weights.ravel()
    assert stats.kstest(z, "norm").pvalue > 1e-3
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - mean) < SIGMAS * math.sqrt(variance / z.size)
    for bound in (2.0, 3.0, 4.0):
        p = 2 * stats.norm.sf(bound)
        assert abs((np.abs(z) > bound).sum() - p * z.size) < SIGMAS * math.sqrt(p * z.size)
    assert len(np.unique(z)) == z.size
    check_uncorrelated(weights)


def test_counts_are_multinomial():
    n, replicates = 4096, 64
    counts = Weights("multinomial", n, replicates, 0).values()
    np.testing.assert_array_equal(counts.sum(axis=0), n)
    # Each count is binomial(n, 1/n); the counts of a replicate are nearly independent.
    highest = 6
    found = np.bincount(np.minimum(counts, highest).astype(int).ravel(), minlength=highest + 1)
    law = stats.binom.pmf(np.arange(highest), n, 1 / n)
    law = np.append(law, 1 - law.sum()) * counts.size
    assert stats.chisquare(found, law).pvalue > 1e-3
    variance = 1 - 1 / n  # the fourth central moment of a Poisson number with mean 1 is 4
    assert abs(counts.var() - variance) < SIGMAS * math.sqrt(3 / counts.size)
    # Counts of a row over replicates have mean 1 and variance 1 - 1/n.
    assert np.abs(counts.mean(axis=1) - 1).max() < SIGMAS * math.sqrt(variance / replicates)
    check_uncorrelated(counts - 1)


def check_uncorrelated(weights: np.ndarray) -> None:
    """Mean 0 and variance 1: products of different replicates, and of rows up to 70 apart, average to 0."""
    n, replicates = weights.shape
    gram = weights.T @ weights / math.sqrt(n)
    assert np.abs(gram - np.diag(np.diag(gram))).max() < SIGMAS
    for lag in (1, 2, 3, 7, 8, 32, 63, 64, 65, 127, 128):
        product = (weights[lag:] * weights[:-lag]).sum() / math.sqrt((n - lag) * replicates)
        assert abs(product) < SIGMAS


def test_kinds_seeds_and_replicates_are_independent():
    n = 4096
    columns = [
        Weights(kind, n, 2**32, seed).values(b, b + 1)[:, 0] - (kind == "multinomial")
        for kind in KINDS
        for seed in (0, 1, 2, 2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1)
        for b in (0, 1, 2, 2**31, 2**32 - 1)
    ]
    correlation = np.corrcoef(np.array(columns)) * math.sqrt(n)
    assert np.abs(correlation - np.diag(np.diag(correlation))).max() < SIGMAS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("poisson", 5, 5, 0), "`kind` is 'poisson', expected one of 'multinomial', 'rademacher', 'gaussian'"),
        (("gaussian", 0, 5, 0), "`n` is 0, expected an integer between 1 and 1099511627776"),
        (("gaussian", 5, -1, 0), "`n_replicates` is -1, expected an integer between 0 and 4294967296"),
        (("gaussian", 5, 5, 2**64), "`seed` is 18446744073709551616, expected an integer between 0 and"),
        (("gaussian", 5, 5, -1), "`seed` is -1"),
    ],
)
def test_bad_weights_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Weights(*arguments)


def test_bad_seeds_and_ranges_are_refused():
    with pytest.raises(TypeError, match="`seed` is 0.5, expected an integer"):
        Weights("gaussian", 5, 5, 0.5)
    weights = Weights("gaussian", 5, 5, 0)
    with pytest.raises(ValueError, match="`end` is 6, expected an integer between 0 and 5"):
        weights.values(0, 6)
    with pytest.raises(ValueError, match="`begin` is 3, expected an integer between 0 and 2"):
        weights.values(3, 2)
    with pytest.raises(ValueError, match="`dtype` is 'int8', expected one of 'float64', 'float32'"):
        weights.values(dtype="int8")
    assert Weights("multinomial", np.int64(5), np.int32(5), np.uint64(3)) == Weights("multinomial", 5, 5, 3)


@pytest.mark.parametrize("n", [1, 7, 300])
def test_products_with_counts(n):
    """Those of the matrix, to the rounding of a sum; the same bits for any number of threads."""
    vector = np.random.default_rng(n).normal(size=n)
    weights = Weights("multinomial", n, 37, seed=5)
    found = weights.products(vector)
    np.testing.assert_allclose(found, vector @ weights.values(), rtol=0, atol=1e-15 * n * np.abs(vector).max() * 8)
    np.testing.assert_array_equal(found, weights.products(vector, threads=3))
    assert Weights("multinomial", n, 0, seed=5).products(vector).shape == (0,)


def labels_by_numpy(p: np.ndarray, draws: int, seed: int) -> np.ndarray:
    uniform = np.random.Generator(np.random.Philox(seed)).random((draws, len(p))).T
    cumulative = np.cumsum(p, axis=1)
    shares = np.minimum(uniform * cumulative[:, -1:], np.nextafter(cumulative[:, -1:], 0))
    return np.sum(cumulative[:, None, :-1] <= shares[:, :, None], axis=2)


@pytest.mark.parametrize(("n", "m", "draws"), [(1, 2, 5), (3, 1, 4), (257, 3, 33), (530, 10, 17), (61, 300, 20)])
def test_drawn_labels_are_those_of_numpy(n, m, draws):
    """Of its generator's numbers in order, whatever is drawn at a time, by any number of threads, in any layout."""
    p = np.random.default_rng(n).dirichlet(np.full(m, 0.2), size=n)
    p[0] = np.eye(m)[m - 1]
    expected = labels_by_numpy(p, draws, 11)
    for at_once, threads, rows in ((draws, 1, p), (5, 3, p), (1, 2, np.asfortranarray(p))):
        found = np.concatenate([*draw_label_batches(rows, draws, 11, at_once=at_once, threads=threads)], axis=1)
        np.testing.assert_array_equal(found, expected)
