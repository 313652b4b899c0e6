"""Whatever happens, in whatever order: what must never happen does not. The real cycle on a world with virtual time."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.errors import Deposed, Unavailable
from scheduler.fleet.calendar import Calendar, Hours
from scheduler.fleet.services import Mode, Service
from scheduler.jobs.job import TERMINAL_JOB, TERMINAL_RUN, TERMINAL_TASK, JobId, JobState, RunState, TaskState
from scheduler.jobs.mail import TERMINAL_NOTICES, Body, Cancel, Decide, Logs, Person, Rerun, Submit
from scheduler.jobs.waits import WaitReason
from scheduler.planning.plan import Plan, Release, TakeBack
from tests.test_cycle import PIPELINE, Lab
from tests.world import Killed

CHAT = Service(name="chat", gpus_per_replica=4, max_num_seqs=8, min_replicas=1, max_replicas=4, mode=Mode.MANAGE)
CODE = Service(name="code", gpus_per_replica=2, max_num_seqs=8, min_replicas=1, max_replicas=2, mode=Mode.MANAGE)
NODES = {"node-1": 8, "node-2": 8, "node-3": 8}
PORTS = ("executor", "cluster", "metrics")
WANTS_GPUS = {JobState.WAITING, JobState.RUNNING, JobState.PREEMPTED}
ONE = "gpujob: 1\nname: one\ncommand: [python, train.py]\n"
JOBS = (
    ONE + "gpus: 8\n",
    ONE + "gpus: 4\nestimate_hours: 1\n",
    ONE + "gpus: 1\nretries: 2\n",
    ONE + "gpus: 0\n",
    ONE + "gpus: 4\nnodes: 2\n",
    ONE + "gpus: 2\ncheckpoint: none\nestimate_hours: 0.5\n",
    ONE + "gpus: 2\npriority: high\n",
    ONE + "gpus: 2\nmax_hours: 0.02\n",
    ONE + "gpus: 1\nstart_after: 2026-12-01T20:10Z\n",
    ONE + "gpus: 8\ndeadline: 2026-12-01T20:05Z\n",
    ONE + "elastic: {gpus: [8, 4, 2]}\nsweep: {seed: [1, 2, 3]}\n",
    ONE + "gpus: 9\n",
    PIPELINE,
    PIPELINE.replace("needs: [train],", "needs: [train], any: true,"),
)
RESTED = Calendar(
    timezone="Europe/Berlin",
    windows=(Hours(opens=21 * 60 + 3, closes=21 * 60 + 20), Hours(opens=21 * 60 + 40, closes=20 * 60)),
)


class Story(RuleBasedStateMachine):
    """One night; each rule is something that people, services or machines do."""

    def __init__(self) -> None:
        super().__init__()
        self.lab = Lab(CHAT, CODE, nodes=NODES)
        self.world = self.lab.world
        self.plan: Plan | None = None

    @rule(count=st.integers(1, 12), seconds=st.sampled_from([1, 5, 10]))
    def time_passes(self, count: int, seconds: int) -> None:
        for _ in range(count):
            self.turn()
            self.world.advance(seconds)

    @rule(seconds=st.sampled_from([30, 120, 900]))
    def nobody_turns(self, seconds: int) -> None:
        """The scheduler is away: services and programs go on."""
        self.world.advance(seconds)

    @rule(text=st.sampled_from(JOBS), work_s=st.sampled_from([1, 20, 60, 300]))
    def submit(self, text: str, work_s: int) -> None:
        for name in ("main", "prepare", "train-0", "train-1", "evaluate", "main-0"):
            self.world.work_s[name] = work_s
        self.ask(Submit(text=text))

    @rule(job=st.integers(1, 8), by=st.sampled_from(["U_ANA", "U_BO", "U_EVE"]))
    def cancel(self, job: int, by: str) -> None:
        self.ask(Cancel(job=JobId(job)), by)

    @rule(job=st.integers(1, 8), approve=st.booleans(), by=st.sampled_from(["U_ANA", "U_BO"]))
    def decide(self, job: int, *, approve: bool, by: str) -> None:
        self.ask(Decide(job=JobId(job), approve=approve), by)

    @rule(job=st.integers(1, 8))
    def look_and_rerun(self, job: int) -> None:
        self.ask(Logs(job=JobId(job)))
        self.ask(Rerun(job=JobId(job)))

    @rule(service=st.sampled_from(["chat", "code"]), clients=st.sampled_from([0, 1, 7, 20, 60]))
    def load(self, service: str, clients: int) -> None:
        self.world.clients[service] = clients

    @rule(port=st.sampled_from(PORTS), away=st.booleans())
    def a_port_goes_or_comes_back(self, port: str, *, away: bool) -> None:
        (self.world.unreachable.add if away else self.world.unreachable.discard)(port)

    @rule(place=st.integers(0, 5), silent=st.booleans())
    def metrics_fall_silent_or_speak(self, place: int, *, silent: bool) -> None:
        for copy in self.world.copies[place : place + 1]:
            (self.world.silent.add if silent else self.world.silent.discard)(copy.id)

    @precondition(lambda self: self.world.copies)
    @rule(place=st.integers(0, 5))
    def a_replica_dies(self, place: int) -> None:
        del self.world.copies[place % len(self.world.copies)]

    @rule(place=st.integers(0, 20), code=st.sampled_from([0, 1, 75, 137, 143]))
    def a_program_ends_by_itself(self, place: int, code: int) -> None:
        running = [tried[-1] for tried in self.world.attempts.values() if tried and tried[-1].released_at]
        for attempt in running[place : place + 1]:
            if attempt.ended_at is None:
                attempt.ended_at, attempt.code = self.world.now, code

    @rule(task=st.sampled_from(["main", "train-0", "evaluate"]), codes=st.lists(st.sampled_from([1, 3]), max_size=3))
    def a_program_will_fail(self, task: str, codes: list[int]) -> None:
        self.world.exit_codes[task] = codes

    @rule(calls=st.integers(0, 12))
    def the_scheduler_is_killed(self, calls: int) -> None:
        """Between any two calls of the next turn."""
        self.world.killed_after = calls
        self.turn()
        self.world.killed_after = None
        self.lab.new_process()

    @rule(skew_s=st.sampled_from([-3600, -90, -1, 0, 1, 90, 3600]))
    def the_clock_jumps(self, skew_s: int) -> None:
        self.world.skew = timedelta(seconds=skew_s)

    def turn(self) -> None:
        self.plan = None
        try:
            self.plan = self.lab.cycle.turn(self.lab.cycle.observe(self.world.now + self.world.skew))
        except (Unavailable, Killed, Deposed):
            return
        assert self.plan is not None, "the only scheduler does not lead"
        self.nothing_starts_while_a_service_waits(self.plan)
        self.every_waiting_task_has_a_reason(self.plan)

    def ask(self, body: Body, by: str = "U_ANA") -> None:
        self.lab.asked += 1
        now = self.world.now + self.world.skew
        request = self.lab.store.send(f"key-{self.lab.asked}", Person(id=by), now, body)
        self.lab.cycle.take_in(now)
        assert self.lab.store.answer(request) is not None

    def nothing_starts_while_a_service_waits(self, plan: Plan) -> None:
        for_services = [one for one in plan.actions if isinstance(one, TakeBack) and one.service]
        starts = [one for one in plan.actions if isinstance(one, Release)]
        assert not (for_services and starts), "a run is started while another is ended for a service"

    def every_waiting_task_has_a_reason(self, plan: Plan) -> None:
        told = {(one.job, one.task) for one in plan.waits}
        for task in self.lab.store.live().tasks:
            job = self.lab.store.job(task.job)
            waits = task.state in {TaskState.WAITING, TaskState.PREEMPTED}
            if waits and job is not None and job.state in WANTS_GPUS and not job.cancelled_by:
                assert (task.job, task.name) in told, f"nobody says why {task.name} of job-{task.job} waits"
                assert task.wait is not None

    @invariant()
    def one_terminal_notice_for_each_end(self) -> None:
        ends = Counter(n.job for n in self.lab.store.notices() if n.kind in TERMINAL_NOTICES)
        for job in self.jobs():
            assert ends[job.id] == (1 if job.state in TERMINAL_JOB else 0), f"{job.label} {job.state}: {ends[job.id]}"

    @invariant()
    def hours_add_up(self) -> None:
        for job in self.jobs():
            runs = [run for run in self.lab.store.job_runs(job.id) if run.state in TERMINAL_RUN]
            used = 0.0
            for run in runs:
                assert run.ended_at is not None
                held = (run.ended_at - run.since).total_seconds()
                parts = (run.kept_s, run.lost_s, run.restart_s, run.ending_s)
                assert held >= 0
                assert min(parts) >= 0
                assert abs(sum(parts) - held) < 1e-3, f"{run.uid} held {held} s, its parts are {parts}"
                used += held * run.gpus
            assert abs(used - job.used_gpu_s) < 1e-2

    @invariant()
    def no_task_is_lost_or_run_twice(self) -> None:
        for (job, name), attempts in self.world.attempts.items():
            done = [each for each in attempts if each.code == 0]
            assert len(done) <= 1, f"{name} of job-{job} was done {len(done)} times"
            assert not done or attempts[-1] is done[0], f"{name} of job-{job} ran again after it was done"
            assert sum(each.ended_at is None for each in attempts) <= 1
        for job in self.jobs():
            tasks = self.lab.store.job_tasks(job.id)
            if job.state in TERMINAL_JOB:
                assert all(task.state in TERMINAL_TASK for task in tasks), f"{job.label} ended before its tasks"
                assert all(run.state in TERMINAL_RUN for run in self.lab.store.job_runs(job.id))
            live = Counter(run.task for run in self.lab.store.job_runs(job.id) if run.state not in TERMINAL_RUN)
            assert all(count == 1 for count in live.values()), f"a task of {job.label} has two runs"

    @invariant()
    def what_runs_was_meant_to(self) -> None:
        known = {run.uid for job in self.jobs() for run in self.lab.store.job_runs(job.id)}
        for attempts in self.world.attempts.values():
            for each in attempts:
                assert each.released_at is None or each.uid in known, f"{each.uid} runs, and nobody wrote it down"

    def teardown(self) -> None:
        """The outside gets well: services have what they need soon, then all jobs come to an end."""
        self.world.unreachable.clear()
        self.world.silent.clear()
        self.world.exit_codes.clear()
        self.world.skew = timedelta()
        self.world.clients.update(chat=60, code=20)
        self.quiet_turns(30)
        have = Counter(copy.service for copy in self.world.copies if copy.leaving_at is None)
        assert have == {"chat": CHAT.max_replicas, "code": CODE.max_replicas}, (
            f"30 turns after their load services have {have}"
        )
        self.world.clients.update(chat=0, code=0)
        for job in self.jobs():
            if job.state is JobState.AWAITING_APPROVAL:
                self.ask(Decide(job=job.id, approve=True), "U_BO")
        self.quiet_turns(300)
        for task in self.lab.store.live().tasks:
            if task.wait is not None and task.wait.reason is WaitReason.TOO_LARGE:
                self.ask(Cancel(job=task.job), "U_BO")  # admitted before any node was seen
        self.quiet_turns(400)
        left = [job.label for job in self.jobs() if job.state not in TERMINAL_JOB]
        assert not left, f"{left} never end"
        for attempts in self.world.attempts.values():
            assert all(each.ended_at is not None for each in attempts), "the executor still holds what has ended"
        for job in self.jobs():
            runs = [run for run in self.lab.store.job_runs(job.id) if run.state is RunState.DONE]
            assert max(Counter(run.task for run in runs).values(), default=0) <= 1
        self.one_terminal_notice_for_each_end()
        self.hours_add_up()
        self.no_task_is_lost_or_run_twice()

    def quiet_turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()
            self.world.advance(5)
            if not self.lab.store.live().jobs and count > 100:
                return

    def jobs(self):
        return [job for number in range(1, 99) if (job := self.lab.store.job(JobId(number))) is not None]


class RestedStory(Story):
    """The same with hours: lending closes and opens again in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.lab = Lab(CHAT, CODE, nodes=NODES, calendar=RESTED)
        self.world = self.lab.world


TestStories = Story.TestCase
TestStories.settings = settings(max_examples=25, stateful_step_count=25, deadline=None, derandomize=True)
TestRestedStories = RestedStory.TestCase
TestRestedStories.settings = settings(max_examples=15, stateful_step_count=25, deadline=None, derandomize=True)
