"""Who may ask, and what a browser may do with the answer: the outermost layer of the live page.

Invariants, whatever a page holds:

- only GET and HEAD are answered, so nothing can be changed by a request;
- a name in `Host` that is not ours is refused: a stranger's site whose name was made to point here
  (DNS rebinding) would send its own name. Addresses cannot be rebound and are let through;
- requests that another site's script or picture makes are refused (`Sec-Fetch-Site`);
- where a token is set, nothing but the style sheet, the script and the icon is served without it.
  It comes once as `?token=`, is answered by a redirect to the same address without it, and lives on
  in a cookie that scripts cannot read and other sites' forms do not send. The cookie holds a proof
  made of the token and a key of this process, not the token;
- nothing is loaded from elsewhere, no inline script or style runs, no frame holds the page, and no
  address is told to other sites (`Referrer-Policy`).
"""

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""What a browser may load and run: our own files, nothing inline."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
"""On every answer, unless the answer has its own."""

OPEN_TO_ALL = "/static/"
"""What needs no token: files that are the same for everybody."""

LEAST_TOKEN = 16
"""Characters that a token has at least."""


@dataclass(frozen=True)
class AccessRules:
    """Whom the page is for.

    Attributes:
        token: None where everybody who can connect may read.
        hosts: names that `Host` may have, in lower case, without port; addresses always may.
        sign_in: the page that asks for the token.
    """

    token: str | None
    hosts: frozenset[str]
    sign_in: "Callable[[], str]"
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def proof(self) -> str:
        """What the cookie of someone who knows the token holds."""
        return hmac.new(self.key, (self.token or "").encode(), hashlib.sha256).hexdigest()

    def knows(self, token: str) -> bool:
        """Whether that is the token; takes as long for a wrong one."""
        return hmac.compare_digest(token.encode(), (self.token or "").encode())


def known_hosts(more: Iterable[str]) -> frozenset[str]:
    """Names this machine is called by, and `more`."""
    return frozenset(name.lower() for name in ("localhost", socket.gethostname(), *more))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """The layer around the application. See the module."""

    def __init__(self, app: "ASGIApp", rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = self._refusal(scope) or self._app
            await answer(scope, receive, _with_headers(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: "Scope") -> Response | None:
        """What is answered instead of the page; None lets the request through."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse(
                "this page only shows; ask with GET\n", 405, {"Allow": "GET, HEAD"}
            )
        if not self._is_known(headers.get("host", "")):
            return PlainTextResponse(
                "this name is not one of the dashboard's; start it with --allow-host NAME\n", 421
            )
        if _is_anothers(headers):
            return PlainTextResponse("asked by another site\n", 403)
        if self._rules.token is None or scope["path"].startswith(OPEN_TO_ALL):
            return None
        return self._identified(scope, headers)

    def _is_known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").rstrip(".").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._rules.hosts
        return True

    def _identified(self, scope: "Scope", headers: Headers) -> Response | None:
        """None for someone who knows the token."""
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in asked if name == "token"]
        kind, _, word = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._rules.knows(word.strip()):
            return None
        name = _cookie_name(scope)
        if given and self._rules.knows(given[-1]):
            left = urlencode([pair for pair in asked if pair[0] != "token"])
            path = "/" + scope["path"].lstrip("/")  # "//name" would lead to another site
            answer = RedirectResponse(f"{path}?{left}" if left else path, 303)
            answer.set_cookie(
                name,
                self._rules.proof,
                httponly=True,
                samesite="lax",
                secure=scope.get("scheme") == "https",
            )
            return answer
        cookie = _cookies(headers).get(name, "")
        if not given and hmac.compare_digest(cookie.encode(), self._rules.proof.encode()):
            return None
        return HTMLResponse(self._rules.sign_in(), 401)


def _is_anothers(headers: Headers) -> bool:
    """Whether another site's page asks, other than by sending its reader here."""
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    return (
        headers.get("sec-fetch-mode") != "navigate" or headers.get("sec-fetch-dest") != "document"
    )


def _cookie_name(scope: "Scope") -> str:
    """Cookies know no ports: two dashboards on one machine must not overwrite each other's."""
    server = scope.get("server")
    return f"tilesmith_{server[1] if server else 0}"


def _cookies(headers: Headers) -> dict[str, str]:
    try:
        return {
            name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()
        }
    except CookieError:
        return {}


def _with_headers(send: "Send") -> "Send":
    async def sending(message: "Message") -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
