"""The settings file: found, overlaid, checked; every fault in one sentence with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot import settings as bot_settings
from bot.manifest import MANIFEST
from scheduler.configfile import load
from scheduler.errors import BadInput
from scheduler.settings import Settings, read

GOOD = """
[database]
url = "sqlite:///x.sqlite3"
[[node]]
name = "node-1"
gpus = 8
[[service]]
name = "chat"
gpus_per_replica = 4
max_num_seqs = 8
max_replicas = 2
mode = "manage"
command = ["python", "replica.py"]
"""


def settings(folder: Path, text: str, **environment: str) -> Settings:
    (folder / "gpujob.toml").write_text(text)
    return read(load(folder / "gpujob.toml", environment))


def faults(folder: Path, text: str, **environment: str) -> str:
    with pytest.raises(BadInput) as caught:
        settings(folder, text, **environment)
    return "\n".join(caught.value.faults)


def test_a_good_file_is_read_with_defaults_and_paths_beside_it(tmp_path: Path):
    found = settings(tmp_path, GOOD)

    assert found.database_url == f"sqlite:///{tmp_path}/x.sqlite3"
    assert found.state_folder == tmp_path / ".gpujob"
    assert found.storage_root == f"file://{tmp_path}/.gpujob/storage"
    assert found.policy.grace_s == 60


def test_every_key_is_also_a_variable_of_the_environment(tmp_path: Path):
    found = settings(
        tmp_path,
        GOOD,
        GPUJOB__SERVICE__0__NAME="talk",
        GPUJOB__POLICY__GRACE_S="7.5",
        GPUJOB__NODE__1__NAME="node-2",
        GPUJOB__NODE__1__GPUS="4",
        GPUJOB__APPROVAL__APPROVERS='["U1", "U2"]',
    )

    assert found.services[0].name == "talk"
    assert found.policy.grace_s == 7.5
    assert [(node.name, node.gpus) for node in found.nodes] == [("node-1", 8), ("node-2", 4)]
    assert found.approval.approvers == ("U1", "U2")


def test_the_file_may_be_named_in_the_environment(tmp_path: Path):
    path = tmp_path / "other.toml"
    path.write_text(GOOD)

    assert load(None, {"GPUJOB_CONFIG": str(path)}).path == path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[databse]\nurl = 'x'\n", ["databse", 'did you mean "database"']),
        ("[cluster]\ntik_s = 5\n", ["tik_s", 'did you mean "tick_s"']),
        ("[cluster]\nkind = 'nomad'\n", ["kind", "nomad", "local"]),
        ("[policy]\ngrace = 5\n", ["grace", 'did you mean "grace_s"']),
        ("[policy]\ngrace_s = 'long'\n", ["grace_s", "'long'", "number"]),
        ("[policy]\nmax_step = 1.5\n", ["max_step", "1.5", "whole number"]),
        ("[metrics]\nkind = 'prometheus'\n", ["url", "http://"]),
        ("[calendar]\ntimezone = 'Mars/North'\n", ["timezone", "Mars/North", "Asia/Seoul"]),
        ("[[service]]\nname = 'chat'\nmode = 'manage'\n", ["chat", "command"]),
        ("[[service]]\nname = 'chat'\nmin_replicas = 3\n", ["min_replicas = 3", "max_replicas = 1"]),
        ("[[service]]\nname = 'Chat!'\n", ["name", "Chat!"]),
        (
            "[[node]]\nname = 'a'\ngpus = 4\n[[service]]\nname = 'c'\ngpus_per_replica = 8\n",
            ["8", "largest node has 4"],
        ),
        ("[[node]]\nname = 'a'\ngpus = 1\n[[node]]\nname = 'a'\ngpus = 1\n", ["a", "twice"]),
        ("[storage]\nroot = '/data'\n", ["/data", "s3://", "file:///"]),
        ("[storage]\nroot = 's3://bucket'\n", ["file:///"]),
        ("[slack]\nbot_token = 'xoxb-1-secret'\n", ["bot_token", "GPUJOB__SLACK__BOT_TOKEN", "file:PATH"]),
        ("[node]\nname = 'a'\n", ["[[node]]"]),
        ("[database\n", ["no TOML"]),
    ],
)
def test_a_fault_names_the_key_the_value_and_the_way_out(tmp_path: Path, text: str, words: list[str]):
    said = faults(tmp_path, text)

    assert all(word in said for word in words), said


KUBERNETES = """
[database]
url = "sqlite:///x.sqlite3"
[cluster]
kind = "kubernetes"
[storage]
root = "s3://bucket/runs"
secret = "storage"
[[service]]
name = "chat"
namespace = "serving"
deployment = "chat"
"""


def test_a_kubernetes_cluster_needs_no_nodes_and_has_defaults(tmp_path: Path):
    found = settings(tmp_path, KUBERNETES)

    assert (found.cluster.namespace, found.cluster.gpu_resource) == ("gpujobs", "nvidia.com/gpu")
    assert found.services[0].url == "http://{ip}:{port}/metrics"
    assert found.storage_root == "s3://bucket/runs"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[cluster]", '[[node]]\nname = "a"\ngpus = 1\n[cluster]', ["[[node]]", "API server"]),
        ('root = "s3://bucket/runs"', "", ["[storage] root is missing", "s3://bucket/prefix"]),
        ('secret = "storage"', 'secret = "a/b"', ["[storage] secret", "a/b"]),
        ('deployment = "chat"', "", ["chat deployment is missing"]),
        ('namespace = "serving"', "", ["chat namespace is missing"]),
        ('namespace = "serving"', 'namespace = "gpujobs"', ["gpujobs", "services live in another"]),
        ('deployment = "chat"', 'deployment = "chat"\ncommand = ["vllm"]', ["command", 'kind = "local"']),
        (
            'deployment = "chat"',
            'deployment = "chat"\n[[service]]\nname = "b"\nnamespace = "serving"\ndeployment = "chat"',
            ["chat of serving stands there twice"],
        ),
    ],
)
def test_a_fault_of_a_kubernetes_cluster_names_the_way_out(tmp_path: Path, old: str, new: str, words: list[str]):
    said = faults(tmp_path, KUBERNETES.replace(old, new))

    assert all(word in said for word in words), said


def test_all_faults_come_at_once(tmp_path: Path):
    said = faults(tmp_path, "[cluster]\ntick_s = 0\n[policy]\nx = 1\n[metrics]\nkind = 'guess'\n")

    assert len(said.splitlines()) == 3


def test_a_secret_never_stands_in_a_message(tmp_path: Path):
    assert "xoxb-1-secret" not in faults(tmp_path, "[slack]\nbot_token = 'xoxb-1-secret'\n")


def test_a_secret_may_come_from_a_file_or_the_environment(tmp_path: Path):
    (tmp_path / "token").write_text("xoxb-from-file\n")
    (tmp_path / "gpujob.toml").write_text(f"[slack]\nbot_token = 'file:{tmp_path}/token'\n")
    loaded = load(tmp_path / "gpujob.toml", {"GPUJOB__SLACK__APP_TOKEN": "xapp-from-environment"})

    assert loaded.data["slack"] == {"bot_token": "xoxb-from-file", "app_token": "xapp-from-environment"}


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path):
    with pytest.raises(BadInput, match="does not exist"):
        load(tmp_path / "no.toml", {})


@pytest.mark.parametrize("name", ["GPUJOB__NODE__5__NAME", "GPUJOB__NODE__X__NAME", "GPUJOB__NODE__0"])
def test_a_variable_that_names_no_place_is_refused(tmp_path: Path, name: str):
    assert name in faults(tmp_path, GOOD, **{name: "x"})


def test_the_settings_that_we_ship_are_good_for_both_processes():
    folder = Path(__file__).resolve().parent.parent.parent / "manifests"

    found = read(load(folder / "gpujob.toml", {}))
    tokens = {"GPUJOB__SLACK__BOT_TOKEN": "xoxb-playground", "GPUJOB__SLACK__APP_TOKEN": "xapp-playground"}
    bot = bot_settings.read(folder / "gpujob.toml", tokens)

    assert found.services[0].mode == "manage"
    assert found.database_url == bot.database_url
    assert found.approval.approvers == bot.approvers


def test_the_slack_manifest_that_we_ship_is_the_one_that_the_bot_prints():
    folder = Path(__file__).resolve().parent.parent.parent / "manifests"

    assert (folder / "slack-app.yaml").read_text() == MANIFEST
