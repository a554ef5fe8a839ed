"""Passwords of database URLs, kept out of whatever people, logs or scripts get to see."""

from __future__ import annotations

import re

_IN_PLACE = re.compile(r"(://[^:/@\s'\"]*):[^\s'\"]*@")
_AS_PARAMETER = re.compile(r"(?i)(\b\w*password=)[^&\s'\"]*")


def without_password(text: str) -> str:
    """A text with the passwords of the URLs in it starred out."""
    return _AS_PARAMETER.sub(r"\1***", _IN_PLACE.sub(r"\1:***@", text))
