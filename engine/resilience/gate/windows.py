"""Counting over a sliding window, and rates, in bounded memory and without a clock of its own."""

from __future__ import annotations

from collections import deque

SLOTS = 20


class Window:
    """Sums over the last `window_ms`, kept in slots: what is added ages out a slot at a time.

    Memory and time of `add` do not depend on how much is counted. A sum covers between
    `window_ms` less one slot and `window_ms`.
    """

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._slot_ms = max(1, window_ms // SLOTS)
        self._slots: deque[tuple[int, list[int]]] = deque()
        self._sums = [0, 0, 0, 0]
        self._oldest = -1  # the last slot that has been taken out
        self._newest = -1
        self._counts = [0, 0, 0, 0]

    def add(
        self, now_ms: int, first: int, second: int = 0, third: int = 0, fourth: int = 0
    ) -> None:
        """Count at `now_ms`: up to four numbers side by side."""
        slot = now_ms // self._slot_ms
        if slot > self._newest:
            self._age(now_ms)
            self._newest, self._counts = slot, [0, 0, 0, 0]
            self._slots.append((slot, self._counts))
        counts, sums = self._counts, self._sums
        counts[0] += first
        counts[1] += second
        counts[2] += third
        counts[3] += fourth
        sums[0] += first
        sums[1] += second
        sums[2] += third
        sums[3] += fourth

    def totals(self, now_ms: int) -> tuple[int, int, int, int]:
        """Return the four sums over the window that ends at `now_ms`."""
        self._age(now_ms)
        first, second, third, fourth = self._sums
        return first, second, third, fourth

    def correct(self, then_ms: int, more: int, now_ms: int) -> None:
        """Correct the first of the numbers that were counted at `then_ms`, where they stand, so
        that the correction ages out with them; what has aged out already needs none."""
        self._age(now_ms)
        then = then_ms // self._slot_ms
        for slot, counts in self._slots:
            if slot == then:
                counts[0] += more
                self._sums[0] += more

    def frees_at_ms(self, now_ms: int, amount: int) -> int:
        """Return when enough has aged out for `amount` of the first sum to be gone."""
        self._age(now_ms)
        gone = 0
        for slot, counts in self._slots:
            gone += counts[0]
            if gone >= amount:
                return (slot + SLOTS) * self._slot_ms
        return now_ms

    def _age(self, now_ms: int) -> None:
        oldest = now_ms // self._slot_ms - SLOTS
        if oldest <= self._oldest:
            return
        self._oldest = oldest
        while self._slots and self._slots[0][0] <= oldest:
            _, counts = self._slots.popleft()
            for index, gone in enumerate(counts):
                self._sums[index] -= gone


class Bucket:
    """A token bucket: `rate` a second, a second's worth of burst and at least one.

    What is larger than the burst passes when the bucket is full and leaves it in debt, so that
    nothing can be too large to ever pass and the rate still holds in the long run.
    """

    def __init__(self, rate: float, now_ms: int) -> None:
        self._at_ms = now_ms
        self._rate = rate
        self._level = self._burst = max(1.0, rate)
        self._full_ms = now_ms  # when it was last seen full

    def tune(self, rate: float, now_ms: int) -> None:
        """Change the rate; what was saved above the new burst is gone."""
        self._fill(now_ms)
        self._rate, self._burst = rate, max(1.0, rate)
        self._level = min(self._level, self._burst)
        if self._level == self._burst:
            self._full_ms = now_ms

    def has(self, amount: float, now_ms: int) -> bool:
        self._fill(now_ms)
        return self._rate > 0 and self._level >= min(amount, self._burst) - 1e-9

    def take(self, amount: float, now_ms: int) -> None:
        self._fill(now_ms)
        self._level -= amount

    def give_back(self, amount: float, taken_ms: int, now_ms: int) -> None:
        """Correct what was taken at `taken_ms`: negative when more was used. What was taken in vain
        is gone once the bucket has been full, as it would have held no more."""
        self._fill(now_ms)
        if amount < 0 or self._full_ms <= taken_ms:
            self._level = min(self._burst, self._level + amount)

    def ready_ms(self, amount: float, now_ms: int) -> int | None:
        """Return when `has(amount)` will be true if nothing else is taken; None: never."""
        if self._rate <= 0:
            return None
        self._fill(now_ms)
        missing = min(amount, self._burst) - self._level
        return now_ms + max(0, int(missing * 1000 / self._rate) + 1)

    def _fill(self, now_ms: int) -> None:
        passed_ms = now_ms - self._at_ms
        if passed_ms <= 0:
            return
        self._at_ms = now_ms
        self._level = min(self._burst, self._level + passed_ms * self._rate / 1000)
        if self._level == self._burst:
            self._full_ms = now_ms
