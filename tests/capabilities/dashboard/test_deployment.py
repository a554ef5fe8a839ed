"""The compose file: what it runs is understood by the commands here, and it holds no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from tilesmith.command_line import command_line

yaml = pytest.importorskip("yaml", reason="the compose file is read with PyYAML")

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file, its anchors and merges resolved."""
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert isinstance(found, dict)
    return found


def parsed(words: list[str]) -> dict[str, Any]:
    """Options of a command of ours, as the command line reads them; unknown ones are refused."""
    command: click.Command = command_line
    context = click.Context(command, **command.context_settings)
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, name
        command = found
    return command.make_context("tilesmith", words, parent=context).params


def test_it_brings_up_a_database_a_head_two_workers_and_the_page(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"database", "head", "worker-1", "worker-2", "dashboard", "schema"} <= services.keys()
    for worker in ("worker-1", "worker-2"):
        assert "--address=head:6379" in services[worker]["command"]
        assert services[worker]["cpuset"], "a core of its own"
    assert services["worker-1"]["cpuset"] != services["worker-2"]["cpuset"]
    assert {"--head", "--num-cpus=0"} <= set(services["head"]["command"])


def test_its_commands_are_understood(compose: dict[str, Any]) -> None:
    page = parsed(compose["services"]["dashboard"]["command"][1:])
    assert page["host"] == "0.0.0.0" and page["token"] is None
    assert str(page["token_file"]) == "/run/secrets/dashboard_token"
    assert "tilesmith_reader@" in page["database"]
    assert parsed(compose["services"]["schema"]["command"][1:])["as_json"]
    advice = (DEPLOY / "compose.yaml").read_text().partition("run --rm tilesmith ")[2]
    asked = parsed(advice.partition("\n#\n")[0].replace("\\\n#", "").partition("\n")[0].split())
    assert asked["workers"] == "ray://head:10001"
    assert asked["database"] == "postgresql://tilesmith@database/tuning"


def test_secrets_are_files_and_only_this_machine_reaches_the_page(compose: dict[str, Any]) -> None:
    names = compose["secrets"]
    assert all(found["file"].startswith("./secrets/") for found in names.values())
    for service in compose["services"].values():
        assert set(service.get("secrets", [])) <= names.keys()
        for name, value in service.get("environment", {}).items():
            assert "PASSWORD" not in name or value.startswith("/run/secrets/")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert ":" not in "".join(service.get("command", [])).partition("://")[2].partition("@")[0]
    ignored = (DEPLOY.parent / ".gitignore").read_text().split()
    assert "deploy/secrets/" in ignored
    assert "deploy/secrets" in (DEPLOY / "Dockerfile.dockerignore").read_text().split()
