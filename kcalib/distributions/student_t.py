"""Student's t distributions of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import betaincc, special
from kcalib._input.checks import reject
from kcalib.distributions._checks import positive_array, real_array
from kcalib.distributions._distribution import QuantileLaw, choose
from kcalib.distributions._saddle_point import log_student_peak

__all__ = ["StudentT"]

# Degrees of freedom from which Wallace's normal approximation (1959) is more accurate than incomplete beta functions.
NEARLY_NORMAL = 1e6


@dataclass(frozen=True, eq=False)
class StudentT(QuantileLaw):
    r"""Student's t distributions, with density proportional to :math:`(1 + z^2 / df)^{-(df + 1) / 2}`.

    Here :math:`z = (y - loc) / scale`.

    Parameters
    ----------
    df : array_like, shape (n,)
        Degrees of freedom, above 1 (otherwise there is no mean), to 1e15.
    loc : array_like, shape (n,)
        Means.
    scale : array_like, shape (n,)
        Scales, from 1e-15 to 1e15; the standard deviation is the scale times the root of df / (df - 2), infinite for df
        <= 2. Up to two of the three may be single numbers.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not finite, real and in its range, or if the shapes differ.

    Notes
    -----
    Target kernels have no closed forms: quasi Monte Carlo draws are used, and characteristic functions in states.
    Wasserstein distances are computed from 128 quantiles.

    Examples
    --------
    >>> from kcalib.distributions import StudentT
    >>> StudentT([4.0, 10.0], 0.0, [1.0, 2.0]).quantile([0.5, 0.975]).round(3).tolist()
    [[0.0, 2.776], [0.0, 4.456]]
    """

    df: Array
    loc: Array
    scale: Array

    def __init__(self, df: Any, loc: Any, scale: Any) -> None:
        self._set(
            df=real_array(df, "df"),
            loc=real_array(loc, "loc"),
            scale=positive_array(scale, "scale", "a positive scale"),
        )
        reject(
            self.df,
            self.df <= 1,
            lambda at, x: f"`df{at}` is {x:.6g}, expected above 1: there is no mean up to there; clip it to 1.01, say",
        )

    def parameters(self) -> Array:
        """Return means, scales and inverse degrees of freedom side by side."""
        return arrays.namespace(self.loc).stack([self.loc, self.scale, 1 / self.df], axis=1)

    def expected_value(self) -> Array:
        return self.loc[:, None]

    def standard_deviation(self) -> Array:
        xp = arrays.namespace(self.df)
        excess = xp.where(self.df > 2, self.df - 2, 1.0)
        return xp.where(self.df > 2, self.scale * xp.sqrt(self.df / excess), xp.inf)[:, None]

    def _log_density(self, y: Array) -> Array:
        xp, (df, loc, scale) = arrays.namespace(y), self._columns(y)
        z = (y - loc) / scale
        return log_student_peak(df) - 0.5 * (df + 1) * xp.log1p(z * z / df) - xp.log(scale)

    def _tails(self, y: Array) -> tuple[Array, Array]:
        xp, (df, loc, scale) = arrays.namespace(y), self._columns(y)
        z = (y - loc) / scale
        df, squares = xp.broadcast_to(df, z.shape), z * z
        rest = df / (df + squares)
        share = squares / (df + squares)
        # The complement of the smaller of the two has fewer digits.
        nearer = choose(
            share < 0.5,
            lambda i: 0.5 * betaincc(xp.full_like(df[i], 0.5), 0.5 * df[i], share[i], rest[i]),
            lambda i: 0.5 * special(y).betainc(0.5 * df[i], xp.full_like(df[i], 0.5), rest[i]),
        )
        normal = special(y).ndtr(-(8 * df + 1) / (8 * df + 3) * xp.sqrt(df * xp.log1p(squares / df)))
        nearer = xp.where(df > NEARLY_NORMAL, normal, nearer)
        return xp.where(z < 0, nearer, 1 - nearer), xp.where(z < 0, 1 - nearer, nearer)

    def _inverse_cdf(self, p: Array) -> Array:
        xp, (df, loc, scale) = arrays.namespace(p), self._columns(p)
        p = xp.broadcast_to(p, (self.n, p.shape[1]))
        df, tails = xp.broadcast_to(df, p.shape), xp.minimum(p, 1 - p)
        functions = special(p)

        def odds_of_share(i: Any) -> Array:
            share = functions.betaincinv(xp.full_like(df[i], 0.5), 0.5 * df[i], 1 - 2 * tails[i])
            return share / (1 - share)

        def odds_of_rest(i: Any) -> Array:
            rest = functions.betaincinv(0.5 * df[i], xp.full_like(df[i], 0.5), 2 * tails[i])
            return (1 - rest) / rest

        # 1 - 2 tails is exact unless the tails are small.
        normal = (8 * df + 3) / (8 * df + 1) * functions.ndtri(tails)
        odds = choose(tails > 0.25, odds_of_share, odds_of_rest)
        z = xp.sqrt(df * xp.where(df > NEARLY_NORMAL, xp.expm1(normal * normal / df), odds))
        return loc + scale * xp.where(p < 0.5, -z, z)

    def _crps(self, y: Array) -> Array:
        """Return the CRPS at targets, shape (n,) (Jordan, Krueger and Lerch 2019)."""
        xp, (df, loc, scale) = arrays.namespace(y), self._columns(y)
        z = (y - loc) / scale
        lower, upper = self._tails(y)
        density = xp.exp(self._log_density(y)) * scale
        # 1 / B(1/2, df/2) is the root of df times the peak density.
        half = df * xp.sqrt(df / (2 * df - 1)) * xp.exp(2 * log_student_peak(df) - log_student_peak(2 * df - 1))
        return scale * (z * (lower - upper) + 2 / (df - 1) * (density * (df + z * z) - half))
