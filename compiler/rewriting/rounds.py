"""`Rounds`: how often something may be done that is done until nothing changes.

What waits for a fixed point has a reason to reach one: each round leaves less to do. Where that
reason is wrong, a user would wait for ever and learn nothing, so every such loop counts its rounds
here. Invariant: a bound is larger than any right run needs; reaching it is a fault of ours, said in
a sentence.
"""

from tilesmith.search_space.support.errors import VerificationError


class Rounds:
    """The rounds of one loop.

    Args:
        what: is done, for the message: "the pass fold-affine of 'resnet'".
        most: rounds that a right run cannot need.
    """

    def __init__(self, what: str, most: int) -> None:
        self.what, self.most, self.taken = what, most, 0

    def another(self) -> None:
        """Count one more.

        Raises:
            VerificationError: there were as many as can be.
        """
        self.taken += 1
        if self.taken > self.most:
            raise VerificationError(
                f"{self.what} does not come to an end: it still changes after {self.most} rounds; "
                "this is a fault of Tilesmith, please report it with the model"
            )
