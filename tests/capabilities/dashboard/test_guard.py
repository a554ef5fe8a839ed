"""Who may ask, and what a browser may do with the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.capabilities.dashboard.conftest import Serve

TOKEN = "correct horse battery staple"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reading_is_answered(file: Path, serve: Serve, method: str) -> None:
    reply = serve(file).request(method, "/jobs/1")
    assert reply.status_code == 405
    assert reply.headers["allow"] == "GET, HEAD"
    assert serve(file).head("/jobs/1").status_code == 200


@pytest.mark.parametrize("path", ["/", "/jobs/9", "/static/live.js", "/jobs/1/report"])
def test_every_answer_forbids_what_is_not_ours(file: Path, serve: Serve, path: str) -> None:
    headers = serve(file).get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("testserver", 200),
        ("TestServer:8765", 200),
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("192.168.0.7:8765", 200),
        ("evil.example", 421),
        ("testserver.evil.example:80", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(
    file: Path, serve: Serve, host: str, status: int
) -> None:
    reply = serve(file).get("/", headers={"host": host})
    assert reply.status_code == status
    assert ("Jobs" in reply.text) == (status == 200)


def test_other_sites_may_lead_here_but_not_ask(file: Path, serve: Serve) -> None:
    def status(site: str, mode: str, dest: str) -> int:
        names = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
        return serve(file).get("/", headers=names).status_code

    assert status("cross-site", "navigate", "document") == 200
    assert status("cross-site", "no-cors", "image") == 403
    assert status("same-site", "cors", "empty") == 403
    assert status("cross-site", "navigate", "iframe") == 403
    assert status("same-origin", "cors", "empty") == 200


def test_without_the_token_nothing_of_the_database_is_shown(file: Path, serve: Serve) -> None:
    client = serve(file, TOKEN)
    for path in ("/", "/jobs/1", "/nowhere", "/?token=wrong", "/?token=", "/?token=%ff"):
        reply = client.get(path)
        assert (reply.status_code, reply.text) == (401, "what is the token?"), path
        assert "set-cookie" not in reply.headers
    assert client.get("/static/style.css").status_code == 200


def test_the_token_is_asked_once_and_leaves_the_address(file: Path, serve: Serve) -> None:
    client = serve(file, TOKEN)
    reply = client.get("/jobs/1", params={"show": "tasks", "token": TOKEN})
    assert reply.status_code == 303
    assert reply.headers["location"] == "/jobs/1?show=tasks"
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Secure" not in cookie
    assert TOKEN not in cookie and TOKEN not in client.get("/jobs/1").text
    assert client.get("/jobs/1").status_code == 200
    assert client.get("/jobs/1?token=wrong").status_code == 401
    stranger = serve(file, TOKEN)
    stranger.cookies.update(client.cookies)
    assert stranger.get("/").status_code == 401, "another process, another proof"


def test_a_redirect_never_leads_away(file: Path, serve: Serve) -> None:
    reply = serve(file, TOKEN).get("//evil.example/x", params={"token": TOKEN})
    assert not reply.headers.get("location", "/").startswith("//")


def test_scripts_may_send_the_token_as_a_header(file: Path, serve: Serve) -> None:
    client = serve(file, TOKEN)
    assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get("/", headers={"Authorization": "Bearer no"}).status_code == 401
    assert client.get("/", headers={"Cookie": "=;;\x01"}).status_code == 401


def test_behind_a_proxy_with_tls_the_cookie_is_for_tls_alone(file: Path, serve: Serve) -> None:
    client = serve(file, TOKEN, base_url="https://testserver")
    assert "Secure" in client.get("/", params={"token": TOKEN}).headers["set-cookie"]


def test_loopback_is_told_from_everything_else() -> None:
    pytest.importorskip("starlette")
    from tilesmith.capabilities.dashboard.guard import is_loopback

    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [
        True
    ] * 4
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "box", ""))
