"""`gpujob` as a person and a script use it: real processes, the local cluster, the promised keys of JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.jobs.spec import JobSpec, StepSpec
from scheduler.ports import AddJob
from scheduler.store.sql import SqlStore
from tests.store.building import NOW, a_job

PROGRAMS = Path(sys.executable).parent
SETTINGS = """
[database]
url = "sqlite:///gpujob.sqlite3"
[cluster]
tick_s = 0.2
grace_s = 5
state = "state"
[[node]]
name = "node-1"
gpus = 4
[[service]]
name = "chat"
gpus_per_replica = 2
max_num_seqs = 8
mode = "observe"
[[service.replica]]
url = "http://127.0.0.1:9/metrics"
node = "node-1"
[approval]
approvers = ["bo"]
[money]
per_gpu_hour = 2.0
"""
JOB = """
gpujob: 1
name: hello
gpus: 2
params: {greeting: hello}
command: [python, -c, "print('{{ params.greeting }} world')"]
"""


class Gpujob:
    """The command line on one settings file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "gpujob.toml").write_text(SETTINGS)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAMS / "gpujob", *words], cwd=self.folder, capture_output=True, text=True, timeout=50
        )

    def json(self, *words: str, code: int = 0) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        assert len(done.stdout.strip().splitlines()) == 1
        return json.loads(done.stdout)

    def file(self, text: str, name: str = "job.yaml") -> str:
        (self.folder / name).write_text(text)
        return name


@pytest.fixture
def gpujob(tmp_path: Path) -> Gpujob:
    return Gpujob(tmp_path)


@pytest.fixture
def serving(gpujob: Gpujob) -> Iterator[Gpujob]:
    assert gpujob.run("migrate").returncode == 0
    log = (gpujob.folder / "log").open("w")
    process = subprocess.Popen([PROGRAMS / "gpujob", "serve"], cwd=gpujob.folder, stdout=log, stderr=log)
    yield gpujob
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0, (gpujob.folder / "log").read_text()
    log.close()


def until_state(gpujob: Gpujob, job: str, state: str) -> Any:
    for _ in range(40):
        found = gpujob.json("status", job)["job"]
        if found["state"] == state:
            return found
    raise AssertionError(f"{job} is {found['state']}, not {state}: {(gpujob.folder / 'log').read_text()[-2000:]}")


@pytest.mark.slow
def test_a_job_from_file_to_report(serving: Gpujob):
    name = serving.file(JOB)

    assert serving.json("submit", name, "--as", "ana")["job"] == "job-1"
    job = until_state(serving, "job-1", "completed")

    assert {"id", "name", "owner", "team", "state", "gpus", "why", "submitted_at", "steps", "runs"} <= job.keys()
    assert job["owner"] == "ana"
    assert {"task", "node", "gpus", "from", "until", "outcome", "kept_s", "lost_s"} <= job["runs"][0].keys()
    assert serving.json("logs", "#1")["log"].strip() == "hello world"
    report = serving.json("report")
    keys = {
        "month",
        "jobs",
        "gpu_hours",
        "kept_gpu_hours",
        "lost_gpu_hours",
        "gpus_12h",
        "gpus_24h",
        "money",
        "currency",
    }
    assert keys <= report["months"][0].keys()
    assert report["total"]["jobs"] == 1
    assert [job["id"] for job in serving.json("list", "--state", "done")["jobs"]] == ["job-1"]
    assert [row["what"] for row in serving.json("audit")["audit"]] == ["submitted"]
    assert {"at", "windows", "changes"} == serving.json("windows").keys()
    assert len(serving.json("windows", "--calibration")["calibration"]) == 9
    assert {"name", "have", "want", "why", "estimates", "replicas"} <= serving.json("scale")["services"][0].keys()
    assert {"at", "actions", "waits"} == serving.json("plan").keys()


@pytest.mark.slow
def test_a_list_says_why_each_job_waits(serving: Gpujob):
    serving.json("submit", serving.file(JOB.replace("gpus: 2", "gpus: 4")), "--as", "ana")
    serving.json("submit", serving.file(JOB + "priority: high\n"), "--as", "ana")
    for _ in range(20):
        rows = {row["id"]: row for row in serving.json("list")["jobs"]}
        if rows["job-1"]["why"]:
            break

    assert "GPUs short" in rows["job-1"]["why"]
    assert "high priority" in rows["job-2"]["why"]


@pytest.mark.slow
def test_cancel_approve_deny_and_rerun_answer_with_a_sentence(serving: Gpujob):
    high = serving.file(JOB + "priority: high\n")
    serving.json("submit", high, "--as", "ana")

    assert serving.json("approve", "job-1", "--as", "ana", code=1)["errors"]
    assert "approved" in serving.json("approve", "job-1", "--as", "bo")["text"]
    until_state(serving, "job-1", "completed")
    assert serving.json("rerun", "1", "param.greeting=bye", "--as", "ana")["job"] == "job-2"
    assert "denied" in serving.json("deny", "job-2", "not", "today", "--as", "bo")["text"]
    assert "already" in serving.json("cancel", "job-2", "--as", "ana", code=1)["errors"][0]
    assert "no parameter" in serving.json("rerun", "1", "param.x=1", code=1)["errors"][0]
    assert "no step prep" in serving.json("rerun", "1", "from", "prep", code=1)["errors"][0]


@pytest.mark.slow
def test_a_second_scheduler_on_the_same_folder_is_refused(serving: Gpujob):
    serving.json("submit", serving.file(JOB))  # its answer says that the first one runs

    second = serving.run("serve")

    assert second.returncode == 3
    assert "another gpujob acts on" in second.stdout


def test_without_a_scheduler_a_request_is_kept_and_said_so(gpujob: Gpujob):
    gpujob.run("migrate")
    done = gpujob.run("status", "job-7")

    assert done.returncode == 1
    assert "no job-7" in done.stdout


def test_check_gives_every_fault_with_line_key_value_and_message(gpujob: Gpujob):
    found = gpujob.json("check", gpujob.file("gpujob: 1\nname: x\ngpu: 2\ncommand: [true]\nretries: many\n"), code=1)

    assert not found["ok"]
    assert {"line", "key", "value", "message"} <= found["errors"][0].keys()
    assert {error["line"] for error in found["errors"]} == {3, 5}
    assert "gpus" in next(error["message"] for error in found["errors"] if error["line"] == 3)


def test_check_of_a_good_file_is_ok(gpujob: Gpujob):
    found = gpujob.json("check", gpujob.file(JOB))

    assert found["ok"]
    assert found["errors"] == []


def test_the_schema_is_json(gpujob: Gpujob):
    assert json.loads(gpujob.run("schema").stdout)["type"] == "object"


def test_doctor_says_what_is_broken_and_what_to_do(gpujob: Gpujob):
    before = gpujob.json("doctor", code=1)
    assert "gpujob migrate" in next(check["says"] for check in before["checks"] if check["what"] == "database")
    gpujob.run("migrate")
    after = gpujob.json("doctor", code=1)

    assert next(check["ok"] for check in after["checks"] if check["what"] == "database")
    assert any(not check["ok"] and check["what"].startswith("metrics of") for check in after["checks"])


def test_status_names_the_images_of_a_job_and_says_which_has_no_digest(gpujob: Gpujob):
    assert gpujob.run("migrate").returncode == 0
    pinned = {"train:1": f"train@sha256:{'9f' * 32}"}
    steps = tuple(StepSpec(name=name, command=("true",), image=name) for name in ("train:1", "prep:2"))
    job = a_job(digests=pinned, unresolved={"prep:2": "docker.io failed (500)"}, spec=JobSpec(name="j", steps=steps))
    store = SqlStore(f"sqlite:///{gpujob.folder}/gpujob.sqlite3")
    token = store.hold("test", NOW, 30)
    assert token is not None
    store.record([AddJob(job=job, tasks=())], token)
    store.close()

    says = "Image prep:2 could not be resolved to a digest: docker.io failed (500); the tag is used as it is."
    found = gpujob.json("status", "job-1")["job"]
    assert (found["images"], found["warnings"]) == ({"prep:2": None, **pinned}, [says])
    assert says in gpujob.run("status", "job-1").stdout.splitlines()


@pytest.mark.parametrize("words", [["nonsense"], ["status"], ["status", "job-x"], ["report", "--month", "May"]])
def test_wrong_use_is_exit_2(gpujob: Gpujob, words: list[str]):
    assert gpujob.run(*words).returncode == 2


KUBERNETES = """
[database]
url = "sqlite:///gpujob.sqlite3"
[cluster]
kind = "kubernetes"
kubeconfig = "away.kubeconfig"
[storage]
root = "s3://bucket"
"""
AWAY = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path):
    (tmp_path / "gpujob.toml").write_text(KUBERNETES)

    done = subprocess.run([PROGRAMS / "gpujob", "windows"], cwd=tmp_path, capture_output=True, text=True, timeout=50)

    assert done.returncode == 2
    assert "away.kubeconfig" in done.stdout
    assert "no such file" in done.stdout


def test_doctor_says_all_it_can_of_a_cluster_that_does_not_answer(tmp_path: Path):
    (tmp_path / "gpujob.toml").write_text(KUBERNETES)
    (tmp_path / "away.kubeconfig").write_text(AWAY)

    done = subprocess.run([PROGRAMS / "gpujob", "doctor"], cwd=tmp_path, capture_output=True, text=True, timeout=50)

    assert done.returncode == 1
    assert "The API server http://127.0.0.1:1 cannot be used" in done.stdout
    assert "database" in done.stdout
    assert "approvers" in done.stdout


@pytest.mark.parametrize(
    "command", ["serve", "plan", "windows", "scale", "submit", "check", "report", "doctor", "audit"]
)
def test_every_command_has_help(gpujob: Gpujob, command: str):
    done = gpujob.run(command, "--help")

    assert done.returncode == 0
    assert "Exit codes" in done.stdout
