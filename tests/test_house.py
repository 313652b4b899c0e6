"""Rules of the house that no tool keeps: doubles are few, contracts bite, documents name what exists."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [*sorted((ROOT / "scheduler").rglob("*.py")), *sorted((ROOT / "bot").rglob("*.py"))]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
DOUBLES = re.compile(r"\b(?:Mock|MagicMock|AsyncMock|patch|create_autospec)\(|monkeypatch\.\w+|mocker\.\w+")
MOST_DOUBLES = 0.05  # mocks and patches a test

PLANTED = [
    ("scheduler/planning/planner.py", "import sqlmodel", "3"),
    ("scheduler/jobs/flow.py", "import pydantic", "3"),
    ("scheduler/fleet/demand.py", "import httpx", "3"),
    ("scheduler/cycle/turn.py", "import subprocess", "3"),
    ("scheduler/jobs/job.py", "import scheduler.fleet.pool", "1"),
    ("scheduler/fleet/pool.py", "import scheduler.planning.plan", "1"),
    ("scheduler/planning/plan.py", "import scheduler.ports", "1"),
    ("scheduler/cycle/turn.py", "import scheduler.adapters.vllm", "1"),
    ("scheduler/service.py", "import scheduler.cli.say", "1"),
    ("scheduler/helpers.py", "X = 1", "1"),
    ("bot/cards.py", "import bot.listeners", "2"),
    ("bot/utilities.py", "X = 1", "2"),
    ("scheduler/adapters/vllm/names.py", "import scheduler.adapters.local.state", "4"),
    ("scheduler/service.py", "import slack_sdk", "5"),
    ("scheduler/cycle/notices.py", "import bot.words", "5"),
    ("bot/listeners.py", "import scheduler.cycle.turn", "6"),
    ("bot/commands.py", "import scheduler.jobs.admission", "6"),
    ("bot/settings.py", "import scheduler.settings", "6"),
    ("bot/cards.py", "import scheduler.store.tables", "7"),
    ("scheduler/cli/showing.py", "import scheduler.store.tables", "7"),
    ("scheduler/wiring/__init__.py", "import apscheduler", "8"),
    ("scheduler/settings.py", "import sqlalchemy", "8"),
    ("bot/courier.py", "import sqlmodel", "8"),
]


def test_mocks_and_patches_are_few():
    texts = [path.read_text() for path in TESTS if path != Path(__file__)]
    tests = sum(len(re.findall(r"^\s*(?:async )?def test_", text, re.MULTILINE)) for text in texts)
    doubles = sum(len(DOUBLES.findall(text)) for text in texts)

    assert tests > 300
    assert doubles / tests <= MOST_DOUBLES, f"{doubles} doubles in {tests} tests"


def test_every_requirement_that_this_version_keeps_has_a_test_of_its_name():
    names = "\n".join(path.read_text() for path in TESTS)
    wanted = {
        "vllm_r": {1, 2, *range(5, 31), 34, 35, 36},
        "slk_": {*range(1, 21), 24, 25, 29, 30, 32, 34, 35, 36, 40, 54},
        "argo_r": {22, 23, 24},
    }
    missing = [
        f"test_{prefix}{number:02}_"
        for prefix, numbers in wanted.items()
        for number in sorted(numbers)
        if f"def test_{prefix}{number:02}_" not in names
    ]

    assert missing == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources apart, so that wrong imports can be planted."""
    folder = tmp_path_factory.mktemp("planted")
    for name in ("scheduler", "bot"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint(folder: Path) -> str:
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([program, "--no-cache"], cwd=folder, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_the_clean_tree_keeps_every_contract(copy: Path):
    assert "8 kept, 0 broken" in lint(copy)


@pytest.mark.parametrize(("file", "line", "contract"), PLANTED, ids=[f"{file}:{line}" for file, line, _ in PLANTED])
def test_a_wrong_import_breaks_its_contract(copy: Path, file: str, line: str, contract: str):
    path = copy / file
    before = path.read_text() if path.exists() else None
    try:
        path.write_text((before or '"""A file without a room."""\n') + f"\n{line}\n")
        said = lint(copy)
    finally:
        path.unlink() if before is None else path.write_text(before)

    assert re.search(rf"^{contract} .*BROKEN|Unexpected|not listed", said, re.MULTILINE), said[-1500:]


def test_the_scheduler_is_sync():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        if path.is_relative_to(ROOT / "scheduler")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AsyncFunctionDef)
    ]

    assert found == []


def test_values_of_the_pure_rooms_are_frozen():
    loose = []
    for room in ("jobs", "fleet", "planning"):
        for path in sorted((ROOT / "scheduler" / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    marks = [ast.unparse(mark) for mark in node.decorator_list]
                    public = not node.name.startswith("_")
                    loose += [
                        f"{path.name}:{node.name}"
                        for mark in marks
                        if public and mark.startswith("dataclass") and "frozen=True" not in mark
                    ]

    assert loose == []


@pytest.mark.parametrize(
    "page", sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
)
def test_paths_that_a_page_names_exist(page: str):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    named = re.findall(r"`((?:scheduler|bot|tests|demo|docs|examples|manifests)/[\w./-]+)`", text)
    made = (ROOT / ".gitignore").read_text().split()  # what commands leave behind
    base = (ROOT / page).parent
    missing = [link for link in links if not (base / link).exists()] + [
        name for name in named if not (ROOT / name.rstrip("/")).exists() and name not in made
    ]

    assert missing == []


def test_no_file_names_package_hosts_or_paths_of_one_machine():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60).stdout.split(
        "\n"
    )
    hosts = re.compile(r"https?://(?:files|registry|proxy|deb|index|security)\.|pythonhosted|/root/\.pyenv")
    found = [
        name
        for name in tracked
        if name and name != "tests/test_house.py" and (ROOT / name).is_file()
        if hosts.search((ROOT / name).read_text(errors="ignore"))
    ]

    assert found == []
