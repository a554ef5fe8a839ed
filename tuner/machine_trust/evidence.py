"""`Evidence`: whether something happens more often than by chance, watched for as long as wanted.

A machine is doubted by yes-or-no questions, each asked of fresh readings and so put that an honest
machine says yes at most half of the time, whatever the noise: was this reading above the middle of
its peers' by more than the tolerance? Against that one bets (a test martingale: Shafer and Vovk,
Game-Theoretic Foundations for Probability and Finance, 2019): a share of the capital on every yes,
starting again from 1 whenever capital is below that, as CUSUM does (Page, Biometrika 1954). Several
shares are played at once, since nobody knows how big a lie is, and their mean counts.

Guarantee: while every answer is yes with a chance of at most 1/2 given the ones before, the chance
that `LIMIT` is reached within n answers is at most n / LIMIT. For what is kept here is at most the
sum of the capital over all beginnings, which grows by at most 1 an answer in the mean, so that
Markov's inequality holds of it where it is stopped (e-detectors: Shin, Ramdas and Rinaldo, New
England Journal of Statistics in Data Science 2023).
"""

from __future__ import annotations

LIMIT = 1e7
"""Capital at which chance is no explanation: of an honest machine's answers at most one in ten
million, on average, reaches it."""
_SHARES = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)


class Evidence:
    """See the module's docstring.

    Attributes:
        since: answers since the capital of the share that leads last began anew: where what it
            speaks of began, most likely.
    """

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._capital = [1.0] * len(_SHARES)
        self._since = [0] * len(_SHARES)

    @property
    def capital(self) -> float:
        """The mean over all shares."""
        return sum(self._capital) / len(_SHARES)

    @property
    def convincing(self) -> bool:
        """Whether chance is no explanation any more."""
        return self.capital >= self._limit

    @property
    def since(self) -> int:
        leading = max(range(len(_SHARES)), key=self._capital.__getitem__)
        return self._since[leading]

    def answer(self, yes: bool) -> None:
        """One more answer to the question."""
        for place, share in enumerate(_SHARES):
            if self._capital[place] <= 1.0:
                self._capital[place], self._since[place] = 1.0, 0
            self._capital[place] *= 1 + share if yes else 1 - share
            self._since[place] += 1
