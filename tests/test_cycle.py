"""The real cycle on a world with virtual time, with the store in memory; also killed between any two calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import pytest

from scheduler.cycle import intake, notices
from scheduler.cycle.turn import Cycle, Outside, Terms
from scheduler.errors import Deposed, Unavailable
from scheduler.fleet.calendar import Calendar, Hours
from scheduler.fleet.services import Mode, Service
from scheduler.jobs.admission import Rules
from scheduler.jobs.job import JobId, JobState, RunState, TaskName, Uid
from scheduler.jobs.mail import Answer, Body, Cancel, Decide, Logs, Person, Rerun, Submit
from scheduler.jobs.order import JobOrder
from scheduler.jobs.reports import Phase, Report
from scheduler.policy import Policy
from scheduler.store.memory import MemoryStore
from tests.world import START, Killed, World

CHAT = Service(name="chat", gpus_per_replica=4, max_num_seqs=8, min_replicas=1, max_replicas=3, mode=Mode.MANAGE)
POLICY = Policy(
    busy_window_s=30, idle_window_s=60, lower_after_s=60, stale_after_s=30, min_run_s=10, restart_s=5, grace_s=10
)
ONE = """
gpujob: 1
name: one
gpus: {gpus}
estimate_hours: 1
command: [python, train.py]
"""
PIPELINE = """
gpujob: 1
name: pipeline
steps:
  - {name: prepare, gpus: 0, command: [python, prep.py], outputs: {data: "s3://runs/{{ job.id }}/data"}}
  - name: train
    needs: [prepare]
    gpus: 2
    sweep: {lr: [1, 2, 3]}
    parallel: 2
    command: [python, train.py, "{{ steps.prepare.outputs.data }}"]
  - {name: evaluate, needs: [train], gpus: 1, command: [python, eval.py]}
"""


class Lab:
    """A cycle, the world it acts on, and the store; turns every five seconds."""

    def __init__(self, *services: Service, nodes: dict[str, int] | None = None, **terms: object) -> None:
        self.world = World(nodes or {"node-1": 8, "node-2": 8}, services)
        self.store = MemoryStore()
        self.asked = 0
        self.terms = Terms(
            owner="scheduler-1",
            services=services,
            calendar=Calendar(timezone="UTC", windows=()),
            policy=POLICY,
            house=intake.House(
                rules=Rules(approvers=("U_BO",)), terms=notices.Terms(per_gpu_hour=2.0, storage_root="file:///data")
            ),
            team_gpus={},
        )
        self.terms = replace(self.terms, **terms)
        self.cycle = self.new_process()

    def outside(self) -> Outside:
        return Outside(
            metrics=self.world,
            cluster=self.world,
            executor=self.world,
            logs=self.world,
            store=self.store,
            leadership=self.store,
        )

    def new_process(self) -> Cycle:
        self.cycle = Cycle(self.outside(), self.terms)
        return self.cycle

    def ask(self, body: Body, by: str = "U_ANA") -> Answer:
        self.asked += 1
        request = self.store.send(f"key-{self.asked}", Person(id=by), self.world.now, body)
        self.cycle.take_in(self.world.now)
        answer = self.store.answer(request)
        assert answer is not None
        return answer

    def turns(self, count: int, seconds: float = 5.0) -> None:
        for _ in range(count):
            self.cycle.turn(self.cycle.observe(self.world.now))
            self.world.advance(seconds)

    def told(self, job: int = 1) -> list[str]:
        return [str(notice.kind) for notice in self.store.notices() if notice.job == job]

    def state(self, job: int = 1) -> JobState:
        found = self.store.job(JobId(job))
        assert found is not None
        return found.state


def test_a_job_runs_and_every_step_is_told():
    lab = Lab()

    answer = lab.ask(Submit(text=ONE.format(gpus=4), channel="C_GPU"))
    lab.turns(20)

    assert answer.ok
    assert "job-1 is submitted" in answer.text
    assert lab.told() == ["submitted", "started", "completed"]
    assert lab.state() is JobState.COMPLETED


def test_a_job_that_does_not_fit_is_told_why_and_starts_when_it_does():
    lab = Lab(nodes={"node-1": 8})
    lab.ask(Submit(text=ONE.format(gpus=8)))
    lab.turns(3)
    lab.ask(Submit(text=ONE.format(gpus=8)))
    lab.turns(40)

    waiting = next(notice for notice in lab.store.notices() if notice.kind == "waiting")
    assert "8 GPUs short" in str(waiting.payload["reason"])
    assert lab.told(2) == ["submitted", "waiting", "started", "completed"]


@pytest.mark.parametrize(("clients", "code", "within_s"), [(0, 143, 85.0), (12, 137, 35.0)], ids=["quiet", "traffic"])
def test_a_run_saves_at_leisure_for_a_place_that_is_kept_and_hurries_once_a_replica_waits(clients, code, within_s):
    lab = Lab(CHAT, policy=replace(POLICY, reserve_slots=1, early_grace_s=120.0), nodes={"node-1": 8})
    lab.world.save_s = 80.0
    lab.turns(10)
    lab.world.work_s["main"] = 3000
    lab.terms = replace(lab.terms, policy=POLICY)
    lab.new_process()
    lab.ask(Submit(text=ONE.format(gpus=4) + "checkpoint: {every: 30m, on_sigterm: true, save: 80s}\n"))
    lab.turns(8)
    lab.terms = replace(lab.terms, policy=replace(POLICY, reserve_slots=1, early_grace_s=120.0))
    lab.new_process()
    lab.turns(3)
    lab.world.clients["chat"] = clients
    lab.turns(30)

    (run,) = [run for run in lab.store.runs(START) if run.attempt == 1]
    assert run.intent_at is not None
    assert run.ended_at is not None
    assert run.exit_code == code
    assert (run.ended_at - run.intent_at).total_seconds() <= within_s


@pytest.mark.parametrize(("after_days", "kept"), [(0.0, True), (1.0, False)])
def test_a_place_is_kept_for_a_service_that_is_about_to_grow_once_the_forecast_has_learned(after_days, kept):
    lab = Lab(CHAT, policy=replace(POLICY, forecast_after_days=after_days), nodes={"node-1": 8})
    lab.world.clients["chat"] = 6
    lab.turns(40)
    lab.ask(Submit(text=ONE.format(gpus=4)))
    lab.turns(4)

    last = lab.store.turn()
    assert last is not None
    assert bool(last[0].soon) is kept
    assert (lab.state() is JobState.WAITING) is kept


def test_a_team_that_had_less_lately_goes_first():
    lab = Lab(nodes={"node-1": 8})
    for team in ("nlp", "nlp", "vision"):
        lab.ask(Submit(text=f"team: {team}\n" + ONE.format(gpus=8)))
        lab.turns(2)
    lab.turns(1)
    lab.world.advance(700)
    lab.turns(60)

    started = [notice.job for notice in lab.store.notices() if notice.kind == "started"]
    assert started == [1, 3, 2]


def test_traffic_takes_gpus_back_and_the_job_goes_on_from_where_it_was():
    lab = Lab(CHAT)
    lab.world.work_s["main"] = 300
    lab.turns(10)
    lab.ask(Submit(text=ONE.format(gpus=8)))
    lab.turns(8)
    assert lab.state() is JobState.RUNNING
    lab.world.clients["chat"] = 30
    lab.turns(12)
    assert len([copy for copy in lab.world.copies if copy.leaving_at is None]) == 3
    lab.world.clients["chat"] = 1
    lab.turns(120)

    assert lab.told() == ["submitted", "started", "preempted", "resumed", "completed"]
    stopped, resumed = (next(n for n in lab.store.notices() if n.kind == kind) for kind in ("preempted", "resumed"))
    assert stopped.payload["service"] == "chat"
    assert stopped.payload["saved_step"] == resumed.payload["from_step"]
    assert stopped.payload["lost_s"] == 0


def test_a_pipeline_runs_step_by_step_and_never_more_at_once_than_parallel_allows():
    lab = Lab()
    lab.ask(Submit(text=PIPELINE))
    most = 0
    for _ in range(80):
        lab.turns(1)
        live = lab.store.live().runs
        most = max(most, len([run for run in live if run.task.startswith("train")]))

    assert lab.told() == ["submitted", "started", "step_done", "step_done", "step_done", "completed"]
    assert most == 2


def test_a_failed_step_skips_what_needs_it_and_says_how_it_ended():
    lab = Lab()
    lab.world.exit_codes["train-1"] = [3]
    lab.ask(Submit(text=PIPELINE))
    lab.turns(80)

    failed = lab.store.notices()[-1]
    assert failed.kind == "failed"
    assert (failed.payload["step"], failed.payload["exit_code"], failed.payload["log"]) == ("train", 3, "last words")
    assert lab.state() is JobState.FAILED
    assert "evaluate" not in [run.task for run in lab.store.job_runs(JobId(1))]


def test_a_real_failure_is_tried_again_only_as_often_as_the_file_asks():
    lab = Lab()
    lab.world.exit_codes["main"] = [1, 1]
    lab.ask(Submit(text=ONE.format(gpus=1) + "retries: 2\n"))
    lab.turns(80)

    assert lab.state() is JobState.COMPLETED
    assert [run.state for run in lab.store.job_runs(JobId(1))] == [RunState.FAILED, RunState.FAILED, RunState.DONE]


def test_a_running_job_is_cancelled_gracefully_and_ends_once():
    lab = Lab()
    lab.ask(Submit(text=ONE.format(gpus=4)))
    lab.turns(3)

    answer = lab.ask(Cancel(job=JobId(1)))
    lab.turns(5)

    assert answer.ok
    assert lab.told() == ["submitted", "started", "cancelled"]
    assert [run.state for run in lab.store.job_runs(JobId(1))] == [RunState.CANCELLED]
    assert not lab.ask(Cancel(job=JobId(1))).ok


def test_only_the_owner_and_approvers_cancel():
    lab = Lab()
    lab.ask(Submit(text=ONE.format(gpus=4)))

    assert not lab.ask(Cancel(job=JobId(1)), by="U_CY").ok
    assert lab.ask(Cancel(job=JobId(1)), by="U_BO").ok
    lab.turns(1)
    assert lab.state() is JobState.CANCELLED


def test_a_high_priority_job_waits_for_an_approver_who_is_not_its_owner():
    lab = Lab()
    lab.ask(Submit(text=ONE.format(gpus=4) + "priority: high\n"), by="U_BO")
    lab.turns(3)
    assert lab.state() is JobState.AWAITING_APPROVAL

    own = lab.ask(Decide(job=JobId(1), approve=True), by="U_BO")
    stranger = lab.ask(Decide(job=JobId(1), approve=True), by="U_CY")

    assert not own.ok
    assert not stranger.ok
    assert lab.state() is JobState.AWAITING_APPROVAL


def test_an_approved_job_runs_and_a_denied_one_never_does():
    lab = Lab()
    for _ in range(2):
        lab.ask(Submit(text=ONE.format(gpus=4) + "priority: high\n"))
    lab.ask(Decide(job=JobId(1), approve=True), by="U_BO")
    lab.ask(Decide(job=JobId(2), approve=False, reason="not now"), by="U_BO")
    lab.turns(20)

    assert lab.told(1) == ["submitted", "approval_needed", "approved", "started", "completed"]
    assert lab.told(2) == ["submitted", "approval_needed", "denied"]


def test_a_job_that_nobody_approves_expires():
    lab = Lab(policy=replace(POLICY, approval_hours=0.01))
    lab.ask(Submit(text=ONE.format(gpus=4) + "priority: high\n"))
    lab.turns(10)

    assert lab.told() == ["submitted", "approval_needed", "expired"]


def test_a_run_that_uses_up_max_hours_fails_and_says_so():
    lab = Lab()
    lab.world.work_s["main"] = 10_000
    lab.ask(Submit(text=ONE.format(gpus=4) + "max_hours: 0.01\n"))
    lab.turns(15)

    assert lab.state() is JobState.FAILED
    assert "max_hours" in str(lab.store.notices()[-1].payload["why"])


def test_a_step_with_any_goes_on_without_the_task_that_used_up_its_time():
    """The executor would try that task again for ever; it is told that we gave it up."""
    lab = Lab()
    lab.world.work_s["train-1"] = 10_000
    lab.ask(
        Submit(
            text="""
gpujob: 1
name: some
max_hours: 0.01
steps:
  - {name: train, gpus: 2, sweep: {lr: [1, 2]}, command: [python, train.py]}
  - {name: evaluate, needs: [train], any: true, gpus: 1, command: [python, eval.py]}
"""
        )
    )
    lab.world.work_s["train-0"] = lab.world.work_s["evaluate"] = 20
    lab.turns(40)

    assert lab.state() is JobState.COMPLETED
    assert [run.task for run in lab.store.job_runs(JobId(1))] == ["train-0", "train-1", "evaluate"]


def test_a_run_that_cannot_be_started_gets_another_chance():
    lab = Lab(nodes={"node-1": 8})
    lab.world.stuck = {"node-1"}
    lab.ask(Submit(text=ONE.format(gpus=4)))
    lab.turns(16)
    assert lab.told() == ["submitted", "preempted"]
    lab.world.stuck = set()
    lab.turns(30)

    assert lab.told() == ["submitted", "preempted", "started", "completed"]


def test_observe_only_writes_plans_down_and_acts_on_nothing():
    lab = Lab(CHAT, observe_only=True)
    lab.ask(Submit(text=ONE.format(gpus=4)))
    lab.turns(5)

    assert not {"executor.submit", "executor.release", "cluster.scale"} & set(lab.world.calls)
    assert lab.store.turn() is not None


def test_a_job_that_the_executor_could_never_run_is_refused_with_its_reasons():
    lab = Lab()
    house = replace(lab.terms.house, unfit=lambda spec: (f"step {spec.steps[0].name} has no image",))
    lab.terms = replace(lab.terms, house=house)
    lab.new_process()

    answer = lab.ask(Submit(text=ONE.format(gpus=1)))

    assert (answer.ok, answer.text) == (False, "step main has no image")
    assert lab.store.live().jobs == ()


def test_argo_r16_a_rerun_from_a_step_runs_it_and_what_follows_on_the_outputs_of_the_first_job():
    lab = Lab()
    lab.ask(Submit(text=PIPELINE))
    lab.turns(60)
    answer = lab.ask(Rerun(job=JobId(1), from_step="train"))
    lab.turns(60)

    assert answer.ok
    assert (lab.state(1), lab.state(2)) == (JobState.COMPLETED, JobState.COMPLETED)
    assert {run.task for run in lab.store.job_runs(JobId(2))} == {"train-0", "train-1", "train-2", "evaluate"}
    assert lab.world.orders[JobId(2)].tasks[0].needs == ()
    first, second = (lab.world.orders[JobId(job)] for job in (1, 2))
    inputs = {task.name: task.command for task in second.tasks if task.step == "train"}
    assert inputs["train-0"] == next(task.command for task in first.tasks if task.name == "train-0")
    assert "s3://runs/job-1/data" in inputs["train-0"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("training", ["no step training", "prepare, train, evaluate"]),
        ("evaluate", ["step train before it is not done", "rerun job-1 from train"]),
    ],
)
def test_a_rerun_from_a_step_that_cannot_be_says_why(step: str, words: list[str]):
    lab = Lab()
    lab.world.exit_codes["train-1"] = [1]
    lab.ask(Submit(text=PIPELINE))
    lab.turns(60)

    answer = lab.ask(Rerun(job=JobId(1), from_step=step))

    assert not answer.ok
    assert all(word in answer.text for word in words), answer.text


def test_a_rerun_is_the_same_job_with_other_parameters():
    lab = Lab()
    text = ONE.format(gpus=1) + "params: {lr: 0.1}\n"
    lab.ask(Submit(text=text))
    answer = lab.ask(Rerun(job=JobId(1), params={"lr": "1e-3"}))

    assert answer.ok, answer.text
    again = lab.store.job(JobId(2))
    assert again is not None
    assert again.spec.params == {"lr": 1e-3}
    first = lab.store.job(JobId(1))
    assert first is not None
    assert first.spec_hash != again.spec_hash


def test_a_bad_job_file_gets_all_its_faults_at_once_and_no_job():
    lab = Lab()
    answer = lab.ask(Submit(text="gpujob: 1\nname: Bad\ngpus: two\ncommand: []\n"))

    assert not answer.ok
    assert len(answer.text.splitlines()) >= 3
    assert lab.store.live().jobs == ()


@pytest.mark.parametrize("port", ["executor", "cluster"])
def test_an_outside_that_does_not_answer_changes_nothing(port: str):
    lab = Lab()
    lab.ask(Submit(text=ONE.format(gpus=4)))
    lab.world.unreachable = {port}
    with pytest.raises(Unavailable):
        lab.turns(1)
    lab.world.unreachable = set()
    lab.turns(20)

    assert lab.told() == ["submitted", "started", "completed"]


def test_metrics_that_do_not_answer_take_nothing_from_the_service():
    lab = Lab(CHAT)
    lab.world.clients["chat"] = 30
    lab.turns(30)
    before = {copy.id for copy in lab.world.copies}
    lab.world.clients["chat"] = 0
    lab.world.silent = set(before)
    lab.turns(60)

    assert {copy.id for copy in lab.world.copies if copy.leaving_at is None} == before


class Remembered:
    """A lease as a process sees it that was stopped for a while: it still believes in its old token."""

    def hold(self, owner: str, now: datetime, ttl_s: float) -> int | None:
        return 1

    def let_go(self, owner: str) -> None:
        return


def test_argo_r24_a_deposed_scheduler_neither_records_nor_acts():
    lab = Lab()
    lab.ask(Submit(text=ONE.format(gpus=4)))
    lab.turns(1)
    lab.world.advance(60)
    assert lab.store.hold("scheduler-2", lab.world.now, 15.0) == 2
    old = Cycle(replace(lab.cycle._out, leadership=Remembered()), lab.terms)

    with pytest.raises(Deposed):
        old.turn(old.observe(lab.world.now))

    assert "executor.release" not in lab.world.calls
    assert lab.told() == ["submitted"]


def test_argo_r24_a_second_scheduler_stays_passive():
    lab = Lab()
    lab.ask(Submit(text=ONE.format(gpus=4)))
    lab.turns(1)
    other = Cycle(lab.cycle._out, replace(lab.terms, owner="scheduler-2"))

    assert other.turn(other.observe(lab.world.now)) is None


@pytest.mark.parametrize("calls", range(1, 60))
def test_killed_between_any_two_calls_nothing_is_lost_or_doubled(calls: int):
    """The process dies before its n-th call to the outside, again and again; what it meant is done by the next one."""
    lab = Lab(CHAT)
    lab.world.work_s["main"] = 120
    lab.turns(10)
    lab.ask(Submit(text=ONE.format(gpus=8)))
    for turn in range(160):
        lab.world.clients["chat"] = 30 if 12 <= turn < 30 else 1
        lab.world.killed_after = calls if turn % 3 == 0 and turn < 100 else None
        try:
            lab.turns(1)
        except Killed:
            lab.world.killed_after = None
            lab.new_process()
            lab.world.advance(5)

    assert lab.state() is JobState.COMPLETED
    told = Counter(lab.told())
    assert told["completed"] == 1
    assert told["submitted"] == 1
    assert told["preempted"] == told["resumed"]
    finished = [run for run in lab.store.job_runs(JobId(1)) if run.state is RunState.DONE]
    assert len(finished) == 1
    for run in lab.store.job_runs(JobId(1)):
        assert run.ended_at is not None
        parts = run.kept_s + run.lost_s + run.restart_s + run.ending_s
        assert parts == pytest.approx((run.ended_at - run.since).total_seconds())


class BrokenLogs:
    """A reader with a bug, such as no adapter of ours should have."""

    def tail(self, uid: Uid, lines: int) -> str:
        raise RuntimeError("a bug")


def test_a_request_that_meets_a_bug_keeps_nobody_else_waiting_and_is_turned_away():
    lab = Lab()
    lab.ask(Submit(text=ONE.format(gpus=1)))
    lab.turns(3)
    lab.cycle = Cycle(replace(lab.outside(), logs=BrokenLogs()), lab.terms)
    broken = lab.store.send("broken", Person(id="U_ANA"), lab.world.now, Logs(job=JobId(1)))
    fine = lab.store.send("fine", Person(id="U_ANA"), lab.world.now, Submit(text=ONE.format(gpus=1)))

    for _ in range(3):
        with pytest.raises(RuntimeError, match="a bug"):
            lab.cycle.take_in(lab.world.now)
    answered = lab.store.answer(fine)
    lab.cycle.take_in(lab.world.now)

    turned_away = lab.store.answer(broken)
    assert answered is not None
    assert answered.ok
    assert turned_away is not None
    assert "a fault in gpujob" in turned_away.text


def test_a_tick_that_took_long_enough_leaves_the_rest_to_the_next():
    lab = Lab()
    for number in range(3):
        lab.store.send(f"key-{number}", Person(id="U_ANA"), lab.world.now, Submit(text=ONE.format(gpus=1)))

    lab.cycle.take_in(lab.world.now, lambda: True)

    assert len(lab.store.open_requests()) == 2


def test_a_job_that_was_handed_over_unseen_is_taken_from_the_executor_when_it_is_cancelled():
    lab = Lab()
    lab.ask(Submit(text=ONE.format(gpus=1)))
    lab.world.dies_after_submit = True  # handed over, but nobody could write it down
    with pytest.raises(Killed):
        lab.turns(1)
    lab.new_process()
    lab.ask(Cancel(job=JobId(1)))
    lab.turns(4)

    assert lab.told() == ["submitted", "cancelled"]
    assert [each.withdrawn for each in lab.world.attempts[JobId(1), TaskName("main")]] == [True]


def test_when_the_hours_of_lending_close_runs_end_for_no_service_and_no_hand_back_is_kept():
    hours = Calendar(timezone="UTC", windows=(Hours(opens=20 * 60, closes=20 * 60 + 1),))
    lab = Lab(CHAT, calendar=hours)
    lab.world.work_s["main"] = 300
    lab.ask(Submit(text=ONE.format(gpus=1)))
    lab.turns(16)

    stopped = next(notice for notice in lab.store.notices() if notice.kind == "preempted")
    assert stopped.payload["service"] == ""
    assert stopped.payload["reason"] == "the hours in which GPUs may be lent are over"
    assert lab.store.hand_backs(START) == ()


def test_a_service_that_fits_on_no_node_is_told_of_and_keeps_no_job_waiting():
    lab = Lab(replace(CHAT, gpus_per_replica=16))
    lab.ask(Submit(text=ONE.format(gpus=4)))
    lab.turns(20)

    board = lab.store.board()
    assert board is not None
    assert "the largest node has 8" in board.alerts[-1]
    assert lab.state() is JobState.COMPLETED


@pytest.mark.parametrize("calls", range(6))
def test_a_job_that_missed_its_deadline_leaves_nothing_with_the_executor_wherever_we_are_killed(calls: int):
    lab = Lab(nodes={"node-1": 8})
    lab.world.work_s["main"] = 3000
    lab.ask(Submit(text=ONE.format(gpus=8)))
    lab.turns(3)
    lab.ask(Submit(text=ONE.format(gpus=8) + "deadline: 2026-12-01T20:01Z\n"))
    lab.turns(4)
    lab.world.advance(60)
    lab.world.killed_after = calls
    with suppress(Killed):
        lab.turns(1)
    lab.world.killed_after = None
    lab.new_process()
    lab.turns(3)

    assert lab.told(2)[-1] == "expired"
    assert all(each.ended_at is not None for each in lab.world.attempts[JobId(2), TaskName("main")])


class Forgetful(World):
    """An executor that takes a job in parts, and whose attempts can be made to vanish."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.submitted: list[dict[str, bool]] = []
        self.refuses = ""
        self.hidden: set[str] = set()  # tasks of which it shows no attempt
        self.whole: list[Report] = []
        self.misjudged: TaskName | None = None  # Argo sees no more of its end than that its pod was deleted

    def submit(self, order: JobOrder, ended: Mapping[TaskName, bool] = {}) -> None:
        if self.refuses:
            raise Unavailable(self.refuses)
        self.submitted.append(dict(ended))
        super().submit(order, ended)

    def reports(self, jobs: Mapping[JobId, Collection[Uid]], now: datetime) -> tuple[Report, ...]:
        shown = [report for report in super().reports(jobs, now) if report.task not in self.hidden]
        if self.misjudged and (JobId(1), self.misjudged) in self.attempts:
            shown = [report for report in shown if report.task == self.misjudged]
            self._misjudge(JobId(1), self.misjudged)
        return (*shown, *(report for report in self.whole if report.job in jobs))

    def _misjudge(self, job: JobId, task: TaskName) -> None:
        tried = self.attempts[job, task]
        if tried[-1].ended_at is not None:
            tried[-1].code, self.misjudged = 143, None
            self.attempts = {(job, task): tried}
            self._open(job)


def forgetful(text: str) -> tuple[Lab, Forgetful]:
    lab = Lab()
    world = Forgetful({"node-1": 8, "node-2": 8}, ())
    lab.world = world
    lab.new_process()
    lab.ask(Submit(text=text))
    return lab, world


def whole(task: str, code: int | None, message: str = "") -> Report:
    return Report(
        uid=Uid("x"),
        job=JobId(1),
        task=TaskName(task),
        phase=Phase.ENDED,
        exit_code=code,
        message=message,
        whole_task=True,
    )


def test_a_job_is_handed_over_again_while_a_task_waits_that_has_no_attempt():
    lab, world = forgetful(PIPELINE)
    world.hidden = {"train-0", "train-1", "train-2"}
    lab.turns(30)
    often = len(world.submitted)
    world.hidden = set()
    lab.turns(60)

    assert 3 <= often <= 15, "once at first, then every ten seconds at most"
    assert world.submitted[-1] == {"prepare": True}
    assert lab.state() is JobState.COMPLETED


def test_the_executor_may_know_that_a_task_is_done_whose_end_nobody_saw():
    lab, world = forgetful(ONE.format(gpus=4))
    world.work_s["main"] = 1000
    lab.turns(5)
    world.hidden = {"main"}
    lab.turns(2)
    lost = lab.told()
    world.whole = [whole("main", 0)]
    lab.turns(3)

    assert lost[-1] == "node_lost"
    assert lab.state() is JobState.COMPLETED


def test_an_attempt_of_which_the_executor_knows_not_even_the_task_any_more_ends():
    lab, world = forgetful(ONE.format(gpus=4))
    world.work_s["main"] = 1000
    lab.turns(5)
    (run,) = lab.store.job_runs(JobId(1))
    world.hidden = {"main"}
    gone = Report(
        uid=run.uid, job=JobId(1), task=TaskName(""), phase=Phase.ENDED, ended_at=world.now, message="pod deleted"
    )
    world.whole = [gone]
    lab.turns(1)

    assert lab.store.job_runs(JobId(1))[0].ended_at is not None
    assert lab.state() is JobState.PREEMPTED


def test_the_executor_may_say_that_a_task_can_never_run():
    lab, world = forgetful(ONE.format(gpus=4))
    world.hidden = {"main"}
    world.whole = [whole("main", None, "gpujob-final: Argo ended its Workflow: exceeded quota")]
    lab.turns(5)

    assert lab.state() is JobState.FAILED
    assert "exceeded quota" in str(lab.store.job(JobId(1)))


def test_a_gated_attempt_of_a_task_that_is_done_is_skipped():
    lab, world = forgetful(PIPELINE)
    world.misjudged = TaskName("prepare")
    lab.turns(90)

    assert "executor.skip" in world.calls
    assert lab.state() is JobState.COMPLETED
    assert [run.task for run in lab.store.job_runs(JobId(1))].count(TaskName("prepare")) == 1


class Troubled(Forgetful):
    """Its attempts get their node, and their programs do not begin."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.trouble = ""

    def reports(self, jobs: Mapping[JobId, Collection[Uid]], now: datetime) -> tuple[Report, ...]:
        return tuple(self._troubled(report) for report in super().reports(jobs, now))

    def _troubled(self, report: Report) -> Report:
        held = replace(report, started_at=None, progress=None)
        if self.trouble and report.phase in {Phase.STARTING, Phase.RUNNING}:
            return replace(held, phase=Phase.STARTING, message=self.trouble)
        if self.trouble and report.phase is Phase.ENDED and report.exit_code != 0:
            return replace(held, exit_code=None, message="was never started: its pod was deleted")
        return report


def troubled(trouble: str) -> tuple[Lab, Troubled]:
    lab = Lab()
    world = Troubled({"node-1": 8, "node-2": 8}, ())
    world.trouble = trouble
    world.work_s["main"] = 100
    lab.world = world
    lab.new_process()
    lab.ask(Submit(text=ONE.format(gpus=4)))
    return lab, world


def test_argo_r27_an_attempt_that_was_never_started_is_tried_again_and_nobody_hears_of_it():
    lab, world = troubled("Unschedulable: 0/2 nodes have room")
    lab.turns(4)
    (run,) = lab.store.job_runs(JobId(1))
    world.take_back(run.uid, 1.0)
    world.advance(30)
    lab.turns(1, 0.0)
    world.trouble = ""
    lab.turns(60)

    job = lab.store.job(JobId(1))
    assert job is not None
    assert lab.told() == ["submitted", "started", "completed"]
    assert job.preemptions == 0
    assert [one.state for one in lab.store.job_runs(JobId(1))] == [RunState.PREEMPTED, RunState.DONE]


def test_a_task_whose_image_cannot_be_pulled_fails_after_three_tries_with_the_reason():
    lab, world = troubled("ImagePullBackOff: image train:1 cannot be pulled")
    world.work_s["main"] = 1000
    lab.turns(11)
    early = [run.state for run in lab.store.job_runs(JobId(1))]
    lab.turns(100)

    why = str(lab.store.notices()[-1].payload["why"])
    assert early == [RunState.STARTING], "it has a minute"
    assert [run.state for run in lab.store.job_runs(JobId(1))] == [RunState.PREEMPTED] * 2 + [RunState.FAILED]
    assert (lab.state(), lab.told()) == (JobState.FAILED, ["submitted", "failed"])
    assert why == "main: could not be started, tried 3 times: ImagePullBackOff: image train:1 cannot be pulled"


def test_an_image_that_can_be_pulled_at_the_third_try_costs_nothing():
    lab, world = troubled("ImagePullBackOff: image train:1 cannot be pulled")
    lab.turns(33)
    tries = len(lab.store.job_runs(JobId(1)))
    world.trouble = ""
    lab.turns(60)

    assert tries > 1
    assert lab.told() == ["submitted", "started", "completed"]


@pytest.mark.parametrize("task", ["", "nobodys"])
@pytest.mark.parametrize("phase", Phase)
def test_reports_of_tasks_that_no_job_has_change_nothing(task: str, phase: Phase):
    lab, world = forgetful(ONE.format(gpus=4))
    world.whole = [
        Report(uid=Uid("x/1"), job=JobId(1), task=TaskName(task), phase=phase),
        whole(task, 3, "gpujob-final: whose?"),
    ]
    lab.turns(30)
    lab.cycle.look_only(world.now)

    assert lab.told() == ["submitted", "started", "completed"]


def test_what_an_operator_should_look_at_in_the_pool_stands_on_the_board():
    lab = Lab()
    lab.world.alerts = ("node-1: pod train has been ending for 3 minutes.",)
    lab.turns(1)

    board = lab.store.board()
    assert board is not None
    assert board.alerts == lab.world.alerts


def test_a_job_that_the_executor_does_not_take_stands_on_the_board_until_it_does():
    lab, world = forgetful(ONE.format(gpus=4))
    world.refuses = "Workflow gpujobs/job-1 is there and is not this job's"
    lab.turns(3)
    refused = lab.store.board()
    world.refuses = ""
    lab.turns(30)
    taken = lab.store.board()

    assert refused is not None
    assert "job-1 cannot be handed over" in refused.alerts[0]
    assert "is not this job's" in refused.alerts[0]
    assert taken is not None
    assert taken.alerts == ()
    assert lab.state() is JobState.COMPLETED
