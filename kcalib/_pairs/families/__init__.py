"""Families of distributions for target kernels with closed forms; each has a header in src/include/kcalib/families/."""

from kcalib._pairs.families._family import Family
from kcalib._pairs.families.atoms import Atoms
from kcalib._pairs.families.laplace import Laplace
from kcalib._pairs.families.normal import Normal
from kcalib._pairs.families.normal_full import NormalFull

FAMILIES: dict[str, Family] = {family.name: family for family in (Normal(), NormalFull(), Laplace(), Atoms())}
