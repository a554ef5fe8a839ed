"""Passwords of database URLs, kept out of whatever people, logs or scripts get to see.

Where a URL is printed it is recognised by its form; what was once read as a database's password is
starred out wherever it stands, however it is written there.
"""

import re
from urllib.parse import quote, quote_plus

_IN_PLACE = re.compile(r"(://[^:/@\s'\"]*):[^\s'\"]*@")
_WITH_QUOTES = re.compile(r"(://[^:/@\s'\"]*):(?:(?!://|[,}\]]\s*['\"])\S)*@")
_AS_PARAMETER = re.compile(r"(?i)(\b\w*password=)[^&\s'\"]*")
_LEAST = 4
"""Shorter passwords are recognised by their place alone: as words they mean anything."""

_secrets: set[str] = set()


def remember_password(password: str | None) -> None:
    """Replace a password, in plain, quoted and escaped spelling, by stars in all later output."""
    if password and len(password) >= _LEAST:
        spelled = {password, quote(password), quote(password, safe=""), quote_plus(password)}
        _secrets.update(spelled, {repr(password)[1:-1]})


def without_password(text: str) -> str:
    """A text with the passwords of the URLs in it starred out."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _IN_PLACE.sub(r"\1:***@", text)
    return _AS_PARAMETER.sub(r"\1***", _WITH_QUOTES.sub(r"\1:***@", text))
