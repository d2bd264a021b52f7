"""What one expression may cost: counted in samples looked at, never in time, so that a live run
and its replay agree on what is too much."""

from __future__ import annotations

from resilience.promql.vector import evaluation_error

# About as many nanoseconds: some seconds at one time, some tens of them over a range.
INSTANT_MAX = 1_000_000_000
RANGE_MAX = 20_000_000_000
# Handling the labels of a series costs as much as so many samples.
SERIES_COST = 1_000


class Budget:
    """The cost of the expression that is being evaluated."""

    __slots__ = ("limit", "spent")

    def __init__(self, steps: int) -> None:
        self.limit = INSTANT_MAX if steps == 1 else RANGE_MAX
        self.spent = 0

    def charge(self, samples: int) -> None:
        """Add to the cost; raises PromQLError of kind `evaluation` beyond the limit."""
        self.spent += samples
        if self.spent > self.limit:
            raise evaluation_error(
                f"the expression would look at more than {self.limit} samples, "
                "use shorter ranges, longer steps or narrower matchers"
            )
