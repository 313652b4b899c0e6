"""Names that we write into the cluster; people find them in their manifests, too."""

from __future__ import annotations

GROUP = "gpujob.io"
GATE = f"{GROUP}/hold"  # the scheduling gate of every attempt
JOB = f"{GROUP}/job"  # label: job-41
TASK = f"{GROUP}/task"  # label: sft-3
RANK = f"{GROUP}/rank"  # label: place in a gang, from 0
GANG = f"{GROUP}/gang"  # label "true" of every pod of a gang: what the Service GANG_SERVICE selects
SPEC = f"{GROUP}/spec-hash"  # annotation
RUN = f"{GROUP}/run"  # annotation of a released pod: the uid of the attempt that it belongs to
SUCCEEDED = f"{GROUP}/succeeded"  # annotation prefix of a released pod: .../succeeded.sft = "sft-0,sft-2"
NODES = f"{GROUP}/nodes"  # annotation of a pod of a gang: how many pods the gang has
ANY = f"{GROUP}/any"  # annotation: steps of which an `any` step is told who succeeded, "prep,sft"
DONE = f"{GROUP}/done"  # annotation of a Workflow: tasks that were done before it was made, "sft-0,sft-2"
CANCELLED = f"{GROUP}/cancelled"  # annotation of a Workflow that we ended, not somebody else
PRIORITY_CLASS = "gpujob-batch"
PRIORITY = -1000  # its value; every pod of a service has more
POLICY = "gpujob-gated-pods"  # the ValidatingAdmissionPolicy of the manifests, and its binding
GANG_SERVICE = "gpujob-gang"  # headless; gives the pods of a gang their addresses
GANG_PORT = 29500
STATUS_FINALIZER = "workflows.argoproj.io/status"
WORKFLOW = "workflows.argoproj.io/workflow"  # label that Argo gives its pods
NODE_ID = "workflows.argoproj.io/node-id"  # annotation that Argo gives its pods
HOSTNAME = "kubernetes.io/hostname"
