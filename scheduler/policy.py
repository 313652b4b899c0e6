"""Every knob of decision: its unit, its default, and why. Frozen; a sweep is `replace(policy, reserve_gpus=8)`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The operator's choices; section `[policy]` of the settings has the same keys.

    Sources of the defaults: vLLM's own behaviour and the autoscalers that were surveyed (docs/decisions/0003).
    """

    # Reading metrics
    busy_window_s: float = 60.0  # gauges count by their peak over this window: one scrape may fall between requests
    idle_window_s: float = 600.0  # no progress for so long before a replica counts as idle
    min_samples_ratio: float = 0.8  # of the scrapes expected in a window; fewer prove nothing
    stale_after_s: float = 30.0  # a newest sample older than this says nothing (three scrapes of 10 s)
    stall_s: float = 120.0  # requests but no engine step for so long: stalled

    # When a replica is full
    waiting_saturated: float = 5.0  # requests in its queue
    kv_saturated: float = 0.80  # share of KV cache in use
    running_saturated_ratio: float = 1.0  # of max_num_seqs

    # Replicas a service needs
    fill_ratio: float = 0.8  # E1: of max_num_seqs, so that a replica has room for a burst
    prefill_cost_ratio: float = 0.1  # E2: a prompt token against a generated one
    drain_backlog_s: float = 60.0  # E2: a queue should be worked off in so long
    spare_kv_ratio: float = 0.10  # E3: kept free on each replica that stays
    spare_waiting: float = 3.0  # E3: requests of room left in each queue
    ttft_slo_s: float = 2.0  # E3: mean time to first token above this forbids taking a replica away
    lower_after_s: float = 900.0  # raise at once; lower only after the need stayed lower for so long
    max_step: int = 4  # replicas a service may grow by in one turn

    # Windows
    reserve_gpus: int = 0  # idle GPUs never lent, over the whole pool
    reserve_slots: int = 0  # places for a replica kept free at all times; runs end for them, with time to save
    horizon_s: float = 43_200.0  # windows end here at the latest: nothing is known further ahead
    pattern_quantile: float = 0.9  # of the days seen, for what will be wanted at a time of day
    least_window_s: float = 0.0  # shorter windows are not lent
    unsure_confidence: float = 0.5  # of a window without a single day of history

    # Places kept free for replicas that are wanted soon
    lead_s: float = 80.0  # from the decision to end a run until its GPUs are free: a turn, the grace, the release
    forecast_after_days: float = 1.0  # of learning, before a running scheduler keeps places by its forecast
    autoscaler_tolerance: float = 0.1  # load above what is there by which an autoscaler asks for more (HPA's default)
    soon_chance: float = 0.01  # a place is kept at this chance, until the chances of a few days were seen
    soon_misses: float = 0.007  # share of replicas that may find no place, as judged by the last days
    soon_release: float = 0.1  # a place is let go once its chance is below this part of the threshold
    soon_hold_s: float = 120.0  # and stayed below the threshold for so long

    # Starting jobs
    node_tasks: int = 16  # tasks without GPUs that run at once, over all nodes
    start_s: float = 60.0  # a run whose gate cannot be opened for so long gets another chance elsewhere
    image_s: float = 1800.0  # a run whose gate is open, and that does not say why it does not begin: its image is big
    resume_s: float = 3600.0  # seconds of its estimate that a task is forgiven that was preempted
    ageing: float = 0.1  # seconds of its estimate that a task is forgiven for each second it waits; 0: shortest first
    unknown_estimate_s: float = 14_400.0  # taken for the estimate of a task that gives none
    fair_share_s: float = 14_400.0  # by so much longer counts a task of a team that had all GPUs of the last days
    gang_patience_s: float = 900.0  # a task of whole nodes that waited so long goes first, the largest before others
    queue_depth_reason: int = 3  # jobs named in "waits behind .."

    # Stopping jobs
    grace_s: float = 60.0  # between SIGTERM and SIGKILL
    early_grace_s: float = 90.0  # the most that a run gets to save if no replica waits for its GPUs yet
    restart_s: float = 120.0  # expected cost of starting a task again, against lost work, when victims are chosen
    min_run_s: float = 180.0  # a younger run is stopped only for a replica that waits, if nothing else will do
    open_node_gpu_s: float = 14_400.0  # price, in GPU-seconds, of putting a replica on a node that has none
    move_after_s: float = 600.0  # a replica or a run that came so lately is not moved
    gather_s: float = 600.0  # a move of runs must pay for itself within so long, by the GPUs that it puts to use
    failures_unseen: int = 3  # endings like a preemption that nobody asked for, before a task counts as failed

    # Approval
    approval_hours: float = 72.0  # a job that nobody approves expires after this
