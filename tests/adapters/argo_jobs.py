"""Jobs as Argo gets them, and their Workflows as they were when somebody last read them.

Run as a program it writes the golden files anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from scheduler.adapters.argo import retry
from scheduler.adapters.argo.render import rendered
from scheduler.adapters.argo.workflow import Shape
from scheduler.adapters.kube.objects import Taint
from scheduler.jobs import jobfile, templates
from scheduler.jobs.job import JobId
from scheduler.jobs.order import JobOrder

DATA = Path(__file__).resolve().parent.parent / "data" / "argo"
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
ROOT = "s3://gpujob"
SHAPE = Shape(namespace="gpujobs")
FULL_SHAPE = Shape(
    namespace="research",
    service_account="runner",
    priority_class="batch",
    grace_s=30,
    gpu_resource="nvidia.com/mig-1g.10gb",
    tolerations=(Taint(key="nvidia.com/gpu", effect="NoSchedule"), Taint(key="team", value="nlp")),
    cpu_per_gpu=4,
    memory_gib_per_gpu=32,
    pull_policy="Always",
    pull_secrets=("registry",),
    run_as_non_root=True,
    env={"AWS_ENDPOINT_URL": "http://s3.storage:8333", "AWS_REGION": "eu-1"},
    secrets={"AWS_ACCESS_KEY_ID": "storage/id", "AWS_SECRET_ACCESS_KEY": "storage/key"},
)

HEAD = 'gpujob: 1\nname: solar\nimage: "registry.example.com/nlp/train:1.2"\n'
JOBS = {
    "one-step": ("gpus: 4\ncommand: [python, train.py]\n", SHAPE),
    "pipeline": (
        """
params: {epochs: 3}
steps:
  - {name: prep, gpus: 0, command: [prep, "{{ outputs.data }}"], outputs: {data: "s3://b/{{ job.id }}/data"}}
  - name: sft
    needs: [prep]
    gpus: 4
    sweep: {lr: [1e-5, 2e-5], seed: [1, 2]}
    command: [sft, "{{ steps.prep.outputs.data }}", --lr, "{{ params.lr }}", --name, "run-{{ task }}"]
    outputs: {model: "s3://b/{{ job.id }}/{{ task }}"}
  - {name: judge, needs: [sft], gpus: 1, command: [judge, "{{ steps.sft.outputs.model | json }}"]}
""",
        SHAPE,
    ),
    "any": (
        """
retries: 2
secrets: {HF_TOKEN: nlp/hf-token}
steps:
  - {name: prep, gpus: 0, command: [prep]}
  - {name: sft, needs: [prep], elastic: {gpus: [8, 4]}, sweep: {lr: [1, 2]}, command: [sft, "{{ params.lr }}"]}
  - {name: best-of, any: true, needs: [sft, prep], gpus: 1, command: [best]}
""",
        FULL_SHAPE,
    ),
    "gang": (
        """
steps:
  - {name: pretrain, gpus: 8, nodes: 4, command: [torchrun, pretrain.py], outputs: {model: "s3://b/{{ task }}"}}
  - {name: in, any: true, needs: [pretrain], gpus: 1, nodes: 2, command: [torchrun, tune.py]}
""",
        SHAPE,
    ),
    "odd-texts": (
        """
params: {prompt: 'say $(HOME), $$ or $5, "x" and {y}'}
steps:
  - name: sft
    gpus: 1
    sweep: {text: ["a b", "한국 <&>", 'q"q', 'back\\slash', "null", "1e5", "{sft-6}", "", "line\\nline"]}
    command: [sft, "{{ params.text }}", "{{{ task }}", "{{ params.prompt }}"]
""",
        SHAPE,
    ),
}


def an_order(text: str, job: int = 41) -> JobOrder:
    """The job of a file, filled; a file without an image gets one."""
    text = text if "\nimage:" in text else text.replace("gpujob: 1\n", HEAD.replace("name: solar\n", ""), 1)
    parsed = jobfile.parse(text)
    assert parsed.spec is not None, parsed.errors
    return templates.fill(parsed.spec, JobId(job), ROOT)


def the_golden() -> Iterator[tuple[str, str, str]]:
    """Name, rendered now, and as it was."""
    for name, (text, shape) in JOBS.items():
        path = DATA / "golden" / f"{name}.yaml"
        yield name, rendered(an_order(HEAD + text), shape), path.read_text() if path.exists() else ""


def documents(text: str) -> list[dict[str, Any]]:
    """The Workflows of a rendered job."""
    return [dict(document) for document in YAML(typ="safe", pure=True).load_all(text)]


def the_workflows() -> Iterator[tuple[str, dict[str, Any]]]:
    """All golden Workflows and those of all examples, for servers that say whether they take them."""
    texts = {name: text for name, text, _ in the_golden()}
    texts |= {path.name: rendered(an_order(path.read_text()), SHAPE) for path in sorted(EXAMPLES.glob("*.yaml"))}
    for name, text in texts.items():
        yield from ((name, document) for document in documents(text))


def the_expressions() -> str:
    """Both conditions of the retryStrategy, a line each."""
    return f"{retry.expression(0)}\n{retry.expression(3)}\n"


if __name__ == "__main__":
    (DATA / "golden").mkdir(parents=True, exist_ok=True)
    for golden_name, now, _ in the_golden():
        (DATA / "golden" / f"{golden_name}.yaml").write_text(now)
    (DATA / "retry-expression.txt").write_text(the_expressions())
