"""Texts from outside as people may see them."""


def printable(text: str) -> str:
    """A text as one line without what steers terminals: models and databases name things freely."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
