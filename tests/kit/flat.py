"""Whether a series of measurements grows: a slope that outliers do not move."""

from collections.abc import Sequence
from statistics import median


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes of all pairs of points (Theil and Sen): up to 29 % of them may lie anywhere.

    Raises ValueError for fewer than eight points, or when all have the same x.
    """
    if len(points) < 8:
        raise ValueError("too few points to tell a slope")
    slopes = [(y - v) / (x - u) for number, (x, y) in enumerate(points) for u, v in points[:number] if x != u]
    if not slopes:
        raise ValueError("all points have the same x")
    return median(slopes)
