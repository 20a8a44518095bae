"""Three laws of n SKCE on predictions of a saturated model: from residuals, from drawn labels, the conditional limit.

    python docs/scripts/three_laws.py [--output docs/_static/three_laws.png]

Everything is computed literally, with matrices: n = 300 predictions 1 - 9e of one of ten classes, e in 10^U(-6, -3).
The figure needs matplotlib (the extra `plot`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from kcalib.laws import ChiSquareMixture

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from hard_laws import drawn_labels, saturated

N, DRAWS, AT_ONCE = 300, 50_000, 1000


def kernel_matrix(p: np.ndarray) -> np.ndarray:
    """Exponential kernel, median heuristic; 0 on the diagonal."""
    distances = np.linalg.norm(p[:, None] - p, axis=2)
    bandwidth = np.median(distances[np.triu_indices(len(p), 1)])
    return np.exp(-distances / bandwidth) * ~np.eye(len(p), dtype=bool)


def statistics_of_draws(k: np.ndarray, p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """n SKCE of labels drawn from the predictions."""
    n, m = p.shape
    found = []
    for _ in range(DRAWS // AT_ONCE):
        labels = drawn_labels(np.tile(p, (AT_ONCE, 1)), rng).reshape(AT_ONCE, n)
        features = np.eye(m)[labels.T] - p[:, None]  # (n, draws, m)
        products = (k @ features.reshape(n, -1)).reshape(features.shape)
        found.append((features * products).sum(axis=(0, 2)) / (n - 1))
    return np.concatenate(found)


def conditional_eigenvalues(k: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Of the matrix with blocks k_ij L_i^T L_j, i != j, where L_i L_i^T is the covariance of a label given p_i."""
    n, m = p.shape
    root = np.sqrt(p)
    # L = diag(sqrt p) - p sqrt(p)^T
    factors = np.eye(m) * root[:, None] - p[:, :, None] * root[:, None]
    products = np.einsum("iab,jac->ibjc", factors, factors, optimize=True) * k[:, None, :, None]
    return np.linalg.eigvalsh(products.reshape(n * m, n * m)) / (n - 1)


def main() -> None:
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="docs/_static/three_laws.png")
    output = parser.parse_args().output
    rng = np.random.default_rng(17)
    p = saturated(-6, -3)(N, rng)
    y = p.argmax(axis=1)  # all labels right, which is what such a model mostly sees
    k = kernel_matrix(p)
    e = np.eye(p.shape[1])[y] - p
    h = k * (e @ e.T)
    observed = h.sum() / (N - 1)
    draws = np.sort(statistics_of_draws(k, p, rng))
    residuals = ChiSquareMixture(np.linalg.eigvalsh(h) / (N - 1))
    eigenvalues = conditional_eigenvalues(k, p)
    conditional = ChiSquareMixture(eigenvalues)
    shares = {
        "residuals": float(residuals.sf(observed)),
        "draws": float(np.mean(draws >= observed * (1 - 1e-9))),  # ties but for rounding
        "limit": float(conditional.sf(observed)),
    }
    print(f"observed {observed:.3g}, p-values", {name: f"{value:.3g}" for name, value in shares.items()})
    spreads = {
        "given the predictions": np.sqrt(2 * np.sum(eigenvalues**2)),
        "of draws": draws.std(),
        "from the residuals": np.sqrt(2 * np.sum(h**2)) / (N - 1),
    }
    print("standard deviations", {name: f"{value:.2g}" for name, value in spreads.items()})

    grid = np.logspace(-7.5, -1, 300)
    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    axes = figure.subplots()
    above = 1 - np.searchsorted(draws, grid) / len(draws)
    curves = (
        (np.array([float(residuals.sf(t)) for t in grid]), "#D55E00", "--", "limit law, from the residuals"),
        (np.where(above > 0, above, np.nan), "#000000", "-", "drawn labels (exact)"),
        (np.array([float(conditional.sf(t)) for t in grid]), "#0072B2", "-.", "limit law, given the predictions"),
    )
    for values, colour, style, label in curves:
        axes.plot(grid, values, color=colour, linestyle=style, linewidth=1.8, label=label)
    axes.axvline(observed, color="0.5", linewidth=1, linestyle=":")
    axes.annotate(
        "observed, all labels right", (observed * 1.4, 1.5e-4), rotation=90, ha="left", va="bottom", color="0.4"
    )
    axes.set(xscale="log", yscale="log", ylim=(1e-4, 1.5), xlabel="t", ylabel="P(n SKCE ≥ t)")
    axes.legend(frameon=False, loc="lower left")
    figure.savefig(output, dpi=120)


if __name__ == "__main__":
    main()
