"""Pages of real vLLM servers, read."""

from __future__ import annotations

import pytest

from scheduler.adapters.vllm import names
from scheduler.fleet.readings import Target
from tests.vllm_data import PAGES, names_by_version, page, read, sample

# page -> engines, running, waiting, KV use, generated tokens, first tokens, finished, capacity in tokens
TABLE = {
    "v0.32.0-idle-fresh": (1, 0, 0, 0.0, 0, 0, 0, 8192),
    "v0.32.0-light": (1, 2, 0, 0.095, 21367, 143, 141, 8192),
    "v0.32.0-busy-no-queue": (1, 6, 0, 0.270, 35951, 243, 237, 8192),
    "v0.32.0-aliased-zero": (1, 0, 0, 0.0, 27270, 177, 177, 8192),
    "v0.32.0-saturated-seqs": (1, 8, 22, 0.444, 58158, 385, 377, 8192),
    "v0.32.0-saturated-kv": (1, 4, 20, 1.0, 8680, 67, 63, 2304),
    "v0.32.0-saturated-kv-dip": (1, 3, 19, 0.529, 6569, 49, 46, 2304),
    "v0.32.0-after-load": (1, 0, 0, 0.0, 133790, 865, 865, 8192),
    "v0.32.0-before-restart": (1, 2, 0, 0.127, 30058, 187, 185, 8192),
    "v0.32.0-after-restart": (1, 6, 0, 0.381, 1097, 8, 2, 8192),
    "v0.32.0-after-abort-all": (1, 0, 0, 0.0, 137247, 873, 865, 8192),
    "v0.32.0-engine-stalled": (1, 8, 4, 0.254, 138952, 881, 865, 8192),
    "v0.32.0-dp2-saturated": (2, 8, 6, 0.018, 2238, 8, 0, 174592),
    "v0.32.0-multiproc-fresh": (1, None, None, None, 0, 0, 0, 87296),
    "v0.32.0-multiproc-saturated": (1, 4, 4, 0.012, 2185, 8, 4, 87296),
    "v0.32.0-disable-log-stats": (0, None, None, None, None, None, None, None),
    "v0.32.0-lora-busy": (1, 4, 3, 0.012, 889, 4, 0, 87296),
    "v0.32.0-lora-after": (1, 0, 0, 0.0, 2100, 7, 7, 87296),
    "v0.32.0-two-served-names": (1, 4, 0, 0.009, 3145, 13, 9, 87296),
    "exposition-v0.8.5-V0": (1, 8, 3, 0.62, 400, 50, 50, None),
    "exposition-v0.8.5-V0-hidden": (1, 8, 3, 0.62, 400, 50, 50, None),
    "exposition-v0.10.2-V1-dp2": (2, 11, 3, 0.62, 640, 80, 80, 864000),
    "exposition-v0.11.2-V1": (1, 8, 3, 0.62, 320, 40, 40, 432000),
    "exposition-v0.11.2-V1-hidden": (1, 8, 3, 0.62, 320, 40, 40, 432000),
}


def test_the_table_has_every_recorded_page():
    assert sorted(TABLE) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_recorded_page_says_what_it_showed(name: str):
    one = sample(name)

    kv = None if one.kv_use is None else round(one.kv_use, 3)
    counted = (one.counters.generation_tokens, one.counters.arrivals, one.counters.finished)
    assert (one.engines, one.running, one.waiting, kv, *counted, one.kv_tokens) == TABLE[name]
    assert one.target is Target.UP


def test_vllm_r06_engines_of_one_replica_add_up_and_the_fullest_cache_counts():
    one = sample("exposition-v0.10.2-V1-dp2")

    assert (one.engines, one.running, one.waiting) == (2, 8 + 3, 3 + 0)
    assert one.kv_use == 0.62  # the other engine has 0.22
    assert one.kv_tokens == 2 * 432_000


@pytest.mark.parametrize(
    ("lines", "use"),
    [
        ("vllm:kv_cache_usage_perc 0.4", 0.4),
        ("vllm:gpu_cache_usage_perc 0.4", 0.4),
        ("vllm:gpu_cache_usage_perc 0.4\nvllm:kv_cache_usage_perc 0.4", 0.4),
        ("vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.4", 0.4),
        ("vllm:num_requests_running 1", None),
    ],
)
def test_vllm_r07_the_cache_has_two_names_that_are_never_added(lines: str, use: float | None):
    assert read(lines).kv_use == use


@pytest.mark.parametrize("name", ["exposition-v0.10.2-V1-dp2", "exposition-v0.8.5-V0", "v0.32.0-busy-no-queue"])
def test_vllm_r08_the_time_between_tokens_is_never_counted_twice(name: str):
    one = sample(name)

    assert one.itl_count is not None
    assert one.counters.generation_tokens is not None
    assert one.itl_count <= one.counters.generation_tokens


def test_vllm_r09_every_release_since_0_7_3_has_what_is_needed_under_a_name_we_read():
    releases, every = names_by_version()

    def releases_with(*bare: str) -> set[str]:
        return {release for name in bare for release in releases[f"vllm:{name}"]}

    assert releases_with(names.RUNNING) == every
    assert releases_with(names.WAITING) == every
    assert releases_with(*names.KV_USE) == every
    assert releases_with(*names.ITL) == every
    assert releases_with(names.GENERATION_TOKENS) == every
    assert releases_with(names.STEPS.removesuffix("_count")) == every
    assert releases_with(names.TTFT) == every


def test_vllm_r11_capacity_is_found_without_a_model_name():
    text = 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="1000",kv_cache_size_tokens="None"} 1\n'
    text += 'vllm:num_requests_running{engine="0",model_name="tiny"} 2\n'

    assert read(text).kv_tokens == 16_000


@pytest.mark.parametrize("blocks", ["None", "", "NaN"])
def test_vllm_r11_capacity_that_vllm_does_not_know_is_unknown(blocks: str):
    text = f'vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="{blocks}"}} 1\n'

    assert read(text).kv_tokens is None


def test_vllm_r12_a_v0_server_before_its_first_log_has_types_without_samples():
    bare = "\n".join(line for line in page("exposition-v0.8.5-V0").splitlines() if not line.startswith("vllm:"))

    one = read(bare)

    assert (one.target, one.vllm_series, one.running) == (Target.UP, 0, None)


def test_vllm_r15_deferred_requests_are_not_load():
    text = "vllm:num_requests_waiting 9\n"
    text += 'vllm:num_requests_waiting_by_reason{reason="capacity"} 2\n'
    text += 'vllm:num_requests_waiting_by_reason{reason="deferred"} 7\n'

    one = read(text)

    assert (one.waiting, one.deferred) == (2, 7)


def test_vllm_r17_arrivals_count_what_clients_gave_up():
    one = sample("v0.32.0-after-abort-all")

    assert (one.counters.arrivals, one.counters.finished) == (873, 865)


def test_vllm_r17_tokens_of_a_prompt_come_once_whatever_their_source():
    one = sample("v0.32.0-saturated-seqs")

    assert one.counters.computed_prompt_tokens == one.counters.prompt_tokens == 102_776


def test_vllm_r23_a_fresh_server_with_several_api_processes_has_counters_but_no_gauges():
    one = sample("v0.32.0-multiproc-fresh")

    assert (one.running, one.waiting, one.kv_use) == (None, None, None)
    assert (one.counters.steps, one.counters.generation_tokens, one.process_start) == (0, 0, None)


def test_vllm_r25_a_page_that_names_a_series_twice_counts_it_once():
    text = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="0",instance="again"} 3\n'

    assert read(text).running == 3


def test_vllm_r26_a_second_served_name_and_adapters_are_counted_with_the_first():
    assert sample("v0.32.0-two-served-names").counters.arrivals == 13
    assert sample("v0.32.0-lora-after").counters.arrivals == 7


def test_vllm_r27_what_is_said_of_adapters_is_no_load_and_is_not_kept():
    many = "\n".join(f'vllm:lora_requests_info{{running_lora_adapters="a{i}"}} 1.79e9' for i in range(1000))

    assert read(f"vllm:num_requests_running 1\n{many}\n") == read("vllm:num_requests_running 1\n" + "vllm:x 1\n" * 1000)


@pytest.mark.parametrize(("awake", "expected"), [("1", True), ("0", False)])
def test_vllm_r29_sleep_is_read(awake: str, expected: bool):
    text = f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}\n'
    text += 'vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1\n'

    assert read(text).awake is expected


def test_vllm_r29_a_replica_sleeps_when_one_of_its_engines_does():
    text = "".join(f'vllm:engine_sleep_state{{engine="{i}",sleep_state="awake"}} {1 - i}\n' for i in (0, 1))

    assert read(text).awake is False


def test_vllm_r30_requests_of_many_answers_count_once():
    text = 'vllm:request_success_total{finished_reason="stop"} 40\nvllm:request_params_n_sum 40\n'
    text += "vllm:time_to_first_token_seconds_count 10\nvllm:e2e_request_latency_seconds_count 10\n"

    one = read(text)

    assert (one.counters.arrivals, one.counters.finished) == (10, 10)


def test_vllm_r35_steps_are_a_histogram_that_is_named_like_a_counter():
    assert sample("v0.32.0-saturated-seqs").counters.steps == 16_466


def test_vllm_r35_times_of_creation_and_odd_help_texts_change_nothing():
    odd = '# HELP vllm:num_requests_running a; b = "c" \\n {x="y"} 7\n# TYPE vllm:num_requests_running gauge\n'
    odd += "vllm:num_requests_running 2\nvllm:generation_tokens_total 5\nvllm:generation_tokens_created 1.7e9\n"

    one = read(odd)

    assert (one.running, one.counters.generation_tokens) == (2, 5)


@pytest.mark.parametrize(
    "text", ["<html><body>404</body></html>", "not found", '{"error": "x"}', 'vllm:num_requests_running{engine="0"']
)
def test_a_page_that_is_no_exposition_is_partial(text: str):
    one = read(text)

    assert (one.target, one.running) == (Target.PARTIAL, None)
    assert "no page of metrics" in one.error


def test_vllm_r09_missing_names_are_told_one_by_one():
    found = {"vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds_count"}

    faults = names.check_names(found, "vllm:", used=True)

    assert [fault.split(" is missing")[0] for fault in faults] == [
        "The series vllm:generation_tokens_total",
        "The series vllm:num_requests_waiting or vllm:num_requests_waiting_by_reason",
        "The series vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc",
    ]


def test_vllm_r10_another_prefix_is_recognised_and_named():
    (fault,) = names.check_names({"ray_vllm_num_requests_running"}, "vllm:", used=True)

    assert 'set metrics.prefix = "ray_vllm_"' in fault


def test_vllm_r13_no_series_at_all_is_told_as_a_setting_of_vllm():
    (fault,) = names.check_names({"process_start_time_seconds"}, "vllm:", used=False)

    assert "--disable-log-stats" in fault
