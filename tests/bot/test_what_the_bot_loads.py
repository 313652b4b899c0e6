"""The bot is installed alone: its image has no Kubernetes client and no Argo builder."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
# How a distribution is imported, where that is not its own name.
MODULES = {"prometheus-client": "prometheus_client"}


def loaded_by(module: str) -> set[str]:
    """Top-level modules that a fresh Python has after importing this one."""
    program = f"import sys, json, {module}; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True)
    return set(json.loads(answer.stdout))


def the_schedulers_own() -> set[str]:
    """Modules of the `scheduler` extra, and what no bot needs at run time."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = [entry.split("[")[0].split(">")[0].split("=")[0].split("~")[0].strip() for entry in extras["scheduler"]]
    return {MODULES.get(name, name.replace("-", "_")) for name in names} | {"kubernetes", "hera", "apscheduler"}


def test_the_bot_loads_nothing_of_the_schedulers_own_libraries():
    loaded = loaded_by("bot.app")

    assert "slack_bolt" in loaded
    assert loaded & the_schedulers_own() == set()


def test_the_bot_loads_neither_migrations_nor_the_schedulers_rooms():
    program = "import sys, bot.app; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True)

    ours = {name for name in answer.stdout.split() if name.startswith("scheduler.")}
    rooms = ("cli", "service", "wiring", "settings", "cycle", "adapters", "planning", "fleet", "store.migrations")
    assert [name for name in ours if name.removeprefix("scheduler.").startswith(rooms)] == []
    assert "alembic" not in answer.stdout.split()
