"""The scheduler's own cycle on a real node, with everything plugged in as in production but the database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from scheduler.adapters.kube.cluster import ClusterTerms, KubeCluster
from scheduler.adapters.kube.services import KubeService
from scheduler.adapters.vllm import ScrapedMetrics
from scheduler.cycle import intake, notices
from scheduler.cycle.turn import Cycle, Outside, Terms
from scheduler.errors import Unavailable
from scheduler.fleet.calendar import Calendar
from scheduler.fleet.services import Service
from scheduler.jobs.admission import Rules
from scheduler.jobs.job import Job, JobId
from scheduler.jobs.mail import Person, Submit
from scheduler.policy import Policy
from scheduler.store.memory import MemoryStore
from scheduler.wiring import clock
from tests.cluster.house import Serving
from tests.node.bench import GRACE_S, Bench

CHAT = Service(name="chat", gpus_per_replica=4, max_num_seqs=8, min_replicas=0, max_replicas=2)


class Night:
    """One scheduler, a turn a second or as soon as something calls for one, and a service that can be scaled."""

    def __init__(self, bench: Bench) -> None:
        self.store = MemoryStore()
        self.serving = Serving(bench.plane, CHAT.gpus_per_replica)
        self._ends, self._hint = threading.Event(), threading.Event()
        bench.watching.listen(self._hint.set)
        where = KubeService(name="chat", namespace=bench.plane.serving, workload="chat", gpus_per_replica=4)
        cluster = KubeCluster(
            bench.plane.api(), bench.watching, [where], ClusterTerms(namespace=bench.plane.namespace), clock
        )
        metrics = ScrapedMetrics("vllm:", 1.0, 60.0, clock, timeout_s=1.0)
        outside = Outside(
            metrics=metrics,
            cluster=cluster,
            executor=bench.executor,
            logs=bench.executor.logs,
            store=self.store,
            leadership=self.store,
        )
        terms = Terms(
            owner="scheduler-1",
            services=(CHAT,),
            calendar=Calendar(timezone="UTC", windows=()),
            policy=Policy(grace_s=GRACE_S, busy_window_s=3, idle_window_s=3, stale_after_s=5, min_run_s=1, restart_s=1),
            house=intake.House(
                rules=Rules(approvers=()), terms=notices.Terms(storage_root=bench.storage.root), local=False
            ),
            team_gpus={},
        )
        self.cycle = Cycle(outside, terms)
        self.troubles: list[str] = []
        self._thread = threading.Thread(target=self._turns, name="night")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._hint.set()
        self._thread.join()

    def submit(self, text: str) -> JobId:
        request = self.store.send("night", Person(id="U_ANA"), clock(), Submit(text=text))
        self._hint.set()
        return self._until(lambda: (answer := self.store.answer(request)) and answer.job)

    def job(self, job: JobId) -> Job:
        found = self.store.job(job)
        assert found is not None
        return found

    def told(self) -> list[str]:
        return [str(notice.kind) for notice in self.store.notices()]

    def _until(self, look: Callable[[], JobId | None]) -> JobId:
        for _ in range(300):
            if found := look():
                return found
            threading.Event().wait(0.1)
        raise AssertionError(f"no answer; troubles: {self.troubles}")

    def _turns(self) -> None:
        while not self._ends.is_set():
            self._hint.wait(1.0)
            self._hint.clear()
            try:
                self.cycle.take_in(clock())
                self.cycle.turn(self.cycle.observe(clock()))
            except Unavailable as trouble:
                self.troubles.append(str(trouble))
