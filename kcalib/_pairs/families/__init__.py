"""Families of distributions that the engine knows; each has a header in src/include/kcalib/families/.

`FAMILIES` are those for target kernels with closed forms, `POINT_FAMILIES` all whose distances there are.
"""

from kcalib._pairs.families._family import Family, PointFamily
from kcalib._pairs.families.atoms import Atoms
from kcalib._pairs.families.laplace import Laplace
from kcalib._pairs.families.normal import Normal
from kcalib._pairs.families.normal_full import NormalFull
from kcalib._pairs.families.staircases import Staircases

FAMILIES: dict[str, Family] = {family.name: family for family in (Normal(), NormalFull(), Laplace(), Atoms())}
POINT_FAMILIES: dict[str, PointFamily] = {**FAMILIES, "staircases": Staircases()}
