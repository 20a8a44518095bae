"""Which kernels of distances between predicted distributions are positive definite? Their smallest eigenvalues.

    python docs/scripts/indefinite_kernels.py [--predictions 60] [--seeds 20]

Draws predictions at random, divides their distances by the median, and prints for each family and kernel the smallest
eigenvalue of the kernel matrix (its diagonal is 1), the lowest over the seeds. Rounding makes it -1e-12 at most: where
it is clearly lower the kernel is not positive definite. Where it is not, that proves nothing; known to be positive
definite are the kernels of W2 of Normal, of MW_2 of Samples of numbers (d = 1), and of all MMD.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from kcalib.distributions import (
    Distribution,
    Mixture,
    MultivariateNormal,
    Normal,
    Samples,
    mmd_distance,
    wasserstein_distance,
)

KERNELS: dict[str, Callable[[Distribution], np.ndarray]] = {
    "exp(-W2^2)": lambda p: _matrix(wasserstein_distance(p), 2),
    "exp(-W2)": lambda p: _matrix(wasserstein_distance(p), 1),
    "exp(-MW_1^2)": lambda p: _matrix(wasserstein_distance(p, order=1), 2),
    "exp(-MW_1)": lambda p: _matrix(wasserstein_distance(p, order=1), 1),
    "exp(-MW_2^2)": lambda p: _matrix(wasserstein_distance(p), 2),
    "exp(-MW_2)": lambda p: _matrix(wasserstein_distance(p), 1),
    "exp(-MMD^2)": lambda p: _matrix(mmd_distance(p, bandwidth=1.0), 2),
    "exp(-MMD)": lambda p: _matrix(mmd_distance(p, bandwidth=1.0), 1),
}
SINGLE = ("exp(-W2^2)", "exp(-W2)", "exp(-MMD^2)", "exp(-MMD)")
MIXED = ("exp(-MW_1^2)", "exp(-MW_1)", "exp(-MW_2^2)", "exp(-MW_2)", "exp(-MMD^2)", "exp(-MMD)")


def _matrix(distances: np.ndarray, power: int) -> np.ndarray:
    scale = np.median(distances[np.triu_indices(len(distances), 1)])
    return np.exp(-((distances / scale) ** power))


def normal(n: int, d: int, rng: np.random.Generator) -> Distribution:
    """Independent entries."""
    return Normal(rng.standard_normal((n, d)), rng.gamma(1.0, size=(n, d)) + 0.01)


def covariances(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """With eigenvectors in all directions and eigenvalues of all sizes."""
    roots = rng.standard_normal((n, d, d)) * rng.gamma(2.0, size=(n, 1, d))
    return roots @ np.swapaxes(roots, 1, 2) + 1e-4 * np.eye(d)


def multivariate_normal(n: int, d: int, rng: np.random.Generator) -> Distribution:
    """All of mean 0, so that distances are those of the covariances."""
    return MultivariateNormal(np.zeros((n, d)), covariances(n, d, rng))


def mixture(n: int, d: int, rng: np.random.Generator) -> Distribution:
    """Four components of weights 1/4 and small standard deviations."""
    return Mixture(np.full(4, 0.25), [Normal(rng.standard_normal((n, d)), np.full((n, d), 0.1)) for _ in range(4)])


def weighted_mixture(n: int, d: int, rng: np.random.Generator) -> Distribution:
    """The same with weights that differ from prediction to prediction."""
    components = [Normal(rng.standard_normal((n, d)), np.full((n, d), 0.1)) for _ in range(4)]
    return Mixture(rng.dirichlet(np.ones(4), size=n), components)


def samples(n: int, d: int, rng: np.random.Generator) -> Distribution:
    """Four points each."""
    return Samples(rng.standard_normal((n, 4, d)))


FAMILIES = {
    "Normal": (normal, SINGLE),
    "MultivariateNormal": (multivariate_normal, SINGLE),
    "Mixture, equal weights": (mixture, MIXED),
    "Mixture": (weighted_mixture, MIXED),
    "Samples": (samples, MIXED),
}


def smallest_eigenvalue(family: str, kernel: str, n: int, d: int, seed: int) -> float:
    prediction = FAMILIES[family][0](n, d, np.random.default_rng(seed))
    return float(np.linalg.eigvalsh(KERNELS[kernel](prediction))[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predictions", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    dimensions = (1, 2, 3, 5)
    print(f"{'family':24}{'kernel':16}" + "".join(f"{f'd = {d}':>10}" for d in dimensions))
    for family, (_, kernels) in FAMILIES.items():
        for kernel in kernels:
            lowest = [
                min(smallest_eigenvalue(family, kernel, arguments.predictions, d, s) for s in range(arguments.seeds))
                for d in dimensions
            ]
            print(f"{family:24}{kernel:16}" + "".join(f"{value:10.1e}" for value in lowest), flush=True)


if __name__ == "__main__":
    main()
