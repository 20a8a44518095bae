"""Points with weights, for which every target kernel has a closed form: its values at two places."""

from __future__ import annotations

from typing import ClassVar

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs import problem
from kcalib._pairs.families._family import Family
from kcalib._pairs.problem import Components, Mixtures
from kcalib._pairs.profiles import Distances, kernel_matrix


class Atoms(Family):
    """All atoms of a row at once, an observation being one of them: the products of single ones are not asked for."""

    name = "atoms"
    title = "atoms"
    profile: ClassVar[str | None] = None

    def unit(self, scale: float) -> float:
        return 1.0

    def columns(self, w: Array, m: Array, scales: Array | None, scale: float) -> Array:
        return arrays.namespace(m).concat([w, m], axis=2)

    def scales_of_nothing(self, like: Array) -> None:
        return None

    def transformed(self, components: Components, root: Array, diagonal: bool) -> tuple[problem.Family, None]:
        return self.name, None

    def elements(self, n_dims: int, n_components: int) -> int:
        return 2 * (n_components + 1) ** 2

    def feature_products(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        return _between_atoms(mixtures, left, right, features=True)

    def point_products(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        return _between_atoms(mixtures, left, right, features=False)


def _between_atoms(mixtures: Mixtures, left: Array, right: Array, *, features: bool) -> Array:
    """Return products of all atoms of rows at once, an observation being one of them."""
    xp, d = arrays.namespace(left), mixtures.n_dims
    weights, atoms = [], []
    for rows in (left, right):
        start = 2 + d if features else 0
        groups = xp.reshape(rows[..., start:], (*rows.shape[:-1], mixtures.n_components, 1 + d))
        w, z = groups[..., 0], groups[..., 1:]
        if features:
            w = rows[..., :1] * xp.concat([rows[..., 1:2], -w], axis=-1)
            z = xp.concat([rows[..., None, 2:start], z], axis=-2)
        weights.append(w)
        atoms.append(z)
    kernel = kernel_matrix(mixtures.kernel, Distances(*atoms))
    return xp.sum(weights[0] * xp.sum(kernel * weights[1][..., None, :], axis=-1), axis=-1)
