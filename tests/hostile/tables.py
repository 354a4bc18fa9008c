"""All cases by name."""

from hostile import attributes, damage, graphs, indices, loops, shapes
from hostile.case import CASES

__all__ = ["CASES", "attributes", "damage", "graphs", "indices", "loops", "shapes"]
