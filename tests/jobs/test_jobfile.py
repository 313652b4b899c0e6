from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from scheduler.jobs import jobfile
from scheduler.jobs.jobfile.document import MAX_BYTES
from scheduler.jobs.spec import Checkpoint, JobSpec, Priority, StepSpec

WHOLE = """
gpujob: 1
name: solar-sft-lr-sweep
team: nlp
image: registry.example.com/nlp/train@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
params: {base: "s3://models/solar-10b", lr: 2e-5, epochs: 3}
secrets: {HF_TOKEN: nlp-secrets/hf-token}
max_hours: 48
estimate_hours: 6
checkpoint: {every: 20m, on_sigterm: false, save: 90s}
priority: high
retries: 2
start_after: 2026-12-01T20:00+09:00
deadline: 2026-12-03T09:00+09:00
steps:
  - name: preprocess
    gpus: 0
    command: [python, prep.py, --out, "{{ outputs.data }}"]
    outputs: {data: "s3://runs/{{ job.id }}/data"}
  - name: sft
    needs: [preprocess]
    elastic: {gpus: [4, 8]}
    nodes: 2
    sweep: {lr: [1e-5, 2e-5], seed: [1, 2]}
    parallel: 3
    command: [python, sft.py, --lr, "{{ params.lr }}"]
    outputs: {model: "s3://runs/{{ job.id }}/sft/{{ task }}"}
  - name: evaluate
    needs: [sft]
    any: true
    gpus: 1
    image: registry.example.com/nlp/eval:1.4
    command: [python, eval.py, --models, "{{ steps.sft.outputs.model | json }}"]
"""
SHORT = "gpujob: 1\nname: solar\nimage: train:1\ngpus: 1\ncommand: [python, train.py]\n"


def spec_of(text: str) -> JobSpec:
    parsed = jobfile.parse(text)
    assert parsed.spec is not None, jobfile.shown(parsed.errors)
    return parsed.spec


def said(text: str) -> str:
    return jobfile.shown(jobfile.parse(text).errors)


def test_a_whole_file_becomes_a_spec():
    assert spec_of(WHOLE) == JobSpec(
        name="solar-sft-lr-sweep",
        team="nlp",
        image="registry.example.com/nlp/train@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        params={"base": "s3://models/solar-10b", "lr": 2e-5, "epochs": 3},
        secrets={"HF_TOKEN": "nlp-secrets/hf-token"},
        max_hours=48,
        estimate_hours=6,
        checkpoint=Checkpoint(every_s=1200, on_sigterm=False, save_s=90),
        priority=Priority.HIGH,
        retries=2,
        start_after=datetime(2026, 12, 1, 11, tzinfo=UTC),
        deadline=datetime(2026, 12, 3, 0, tzinfo=UTC),
        steps=(
            StepSpec(
                name="preprocess",
                command=("python", "prep.py", "--out", "{{ outputs.data }}"),
                outputs={"data": "s3://runs/{{ job.id }}/data"},
            ),
            StepSpec(
                name="sft",
                needs=("preprocess",),
                gpus=(8, 4),
                nodes=2,
                sweep=(
                    {"lr": 1e-5, "seed": 1},
                    {"lr": 1e-5, "seed": 2},
                    {"lr": 2e-5, "seed": 1},
                    {"lr": 2e-5, "seed": 2},
                ),
                parallel=3,
                command=("python", "sft.py", "--lr", "{{ params.lr }}"),
                outputs={"model": "s3://runs/{{ job.id }}/sft/{{ task }}"},
            ),
            StepSpec(
                name="evaluate",
                needs=("sft",),
                any=True,
                gpus=(1,),
                image="registry.example.com/nlp/eval:1.4",
                command=("python", "eval.py", "--models", "{{ steps.sft.outputs.model | json }}"),
            ),
        ),
    )


def test_the_short_form_is_one_step_named_main():
    (step,) = spec_of(f"{SHORT}nodes: 2\nsweep: [{{lr: 1}}, {{lr: 2}}]\nparallel: 1\n").steps

    assert (step.name, step.gpus, step.nodes, step.parallel) == ("main", (1,), 2, 1)
    assert step.sweep == ({"lr": 1}, {"lr": 2})


def test_a_step_is_not_named_as_no_label_may_be():
    assert said("gpujob: 1\nname: x\nsteps: [{name: sft-, command: [x]}]\n") == (
        'line 3, steps[0].name = "sft-": must not end with -; Kubernetes takes no such label'
    )


def test_errors_of_the_short_form_name_its_own_keys():
    assert said(f"{SHORT}outputs: {{model: '{{{{ params.x }}}}'}}\n").startswith(
        "line 6, outputs.model = {{ params.x }}:"
    )


def test_a_file_without_checkpoint_saves_every_thirty_minutes_and_none_means_none():
    assert spec_of(SHORT).checkpoint == Checkpoint(every_s=1800, on_sigterm=True, save_s=60)
    assert spec_of(f"{SHORT}checkpoint: none\n").checkpoint is None


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-5", 1e-5),
        ("2E+3", 2000.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("-7", -7),
        ("0x1F", 31),
        ("0o17", 15),
        ("010", 10),
        ("true", True),
        ("yes", "yes"),
        ("on", "on"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-12-01", "2026-12-01"),
        ('"1e-5"', "1e-5"),
        ("!!str 5", "5"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_numbers_are_those_of_yaml_1_2(written, value):
    read = spec_of(f"{SHORT}params: {{x: {written}}}\n").params["x"]

    assert (type(read), read) == (type(value), value)


def test_numbers_in_a_command_stay_as_they_are_written():
    text = SHORT.replace("train.py", "train.py, --lr, 1e-5, --epochs, 010, --fast, true")

    assert spec_of(text).steps[0].command[3:] == ("1e-5", "--epochs", "010", "--fast", "true")


def test_json_is_a_job_file_too_even_indented_with_tabs():
    plain = {"gpujob": 1, "name": "solar", "image": "train:1", "gpus": 1, "command": ["python", "train.py"]}

    assert spec_of(json.dumps(plain, indent="\t")) == spec_of(SHORT)


@pytest.mark.parametrize("text", ["\ufeff" + SHORT, SHORT.replace("\n", "\r\n"), f"# mine\n---\n{SHORT}...\n"])
def test_byte_order_marks_windows_lines_and_document_marks_are_read(text):
    assert spec_of(text) == spec_of(SHORT)


def test_an_alias_stands_for_what_it_names():
    text = f"{SHORT}params:\n  lr: &rate 1e-5\n  lr2: *rate\n"

    assert spec_of(text).params == {"lr": 1e-5, "lr2": 1e-5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [*a]", "no anchor of this name"),
        ("a: *b", "no anchor of this name"),
        (f"a: {'[' * 5000}", "nested deeper than 12 levels"),
        ("a: !!python/object:os.system x", "a tag (a word with !) is not allowed"),
        ("gpujob: 1\n? [a]\n: b\n", "a key must be a word"),
        ("a: \x01", "a character that text cannot have"),
        ("a: 'x", "a quote is opened here and never closed"),
        ("a: @x", "put the value into quotes"),
        ("", "must be a mapping of keys"),
        ("# nothing\n", "must be a mapping of keys"),
        (f'{SHORT}workdir: "\\0"\n', "a character that no program can be given"),
        (f'{SHORT}workdir: "\\ud800"\n', "a character that no program can be given"),
    ],
)
def test_texts_that_are_no_job_file_are_refused_in_words(text, words):
    assert words in said(text)


def test_a_text_over_the_limit_is_refused_before_it_is_read():
    assert said(SHORT + "#" * MAX_BYTES) == (
        f"line 1: the file has {len(SHORT) + MAX_BYTES:,} bytes, limit 256,000; "
        "move long lists into a file that the program reads"
    )


def test_an_unclosed_template_in_brackets_is_told_as_a_matter_of_quotes():
    assert 'must be quoted inside { } and [ ]: write "{{ NAME }}"' in said(
        SHORT.replace("train.py", "--lr={{ params.lr }}")
    )


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnopqrstuvwx",
        "sk-proj-abcdefghijklmnopqrstuv",
        "xoxb-1234567890-abcdef",
        "ghp_abcdefghijklmnopqrstuvwxyz012345",
        "AKIAIOSFODNN7EXAMPLE",
        "-----BEGIN RSA PRIVATE KEY-----",
        "s3://user:password@bucket/x",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x",
    ],
)
@pytest.mark.parametrize(
    "file",
    [
        "params: {x: 'VALUE'}",
        "workdir: 'VALUE'",
        "secrets: {X: 'VALUE'}",
        "outputs: {x: 'VALUE'}",
        "params: {'VALUE': 1}",
        "unknown: {x: 'VALUE'}",
        "sweep: [{x: 'VALUE'}]",
        "sweep: 'VALUE'",
        "checkpoint: {'VALUE': 1}",
        "'VALUE': 1",
    ],
)
def test_a_secret_is_refused_wherever_it_stands_and_never_shown(secret, file):
    shown = said(SHORT + file.replace("VALUE", secret))

    assert "Secret" in shown
    assert secret not in shown
    assert secret[4:16] not in shown


def test_a_secret_of_no_known_shape_is_not_shown_either():
    assert "hunter2" not in said(f"{SHORT}hf_token: hunter2\nsecrets: {{X: hunter2}}\n")
    assert "hunter2" not in said(f"{SHORT}secrets: [hunter2]\n")
    assert "hunter2" not in said(f"{SHORT}secrets: {{X: [hunter2\n")


def test_words_that_only_look_a_little_like_secrets_are_taken():
    assert spec_of(
        f"{SHORT}params: {{disk: disk-aaaaaaaaaaaaaaaaaaaaaaaa, tokenizer: hf_small, url: 's3://a/b:c@d'}}\n"
    )


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (SHORT.replace("python, train.py", "bash, -c, 'python train.py'"), "Step main starts a shell (bash)."),
        (SHORT.replace("python, train.py", "/bin/sh, run.sh"), "Step main starts a shell (sh)."),
        (SHORT.replace("image: train:1\n", ""), "A step has no image"),
        (SHORT.replace("gpus: 1\n", ""), "No step asks for GPUs."),
        (f"{SHORT}parallel: 2\n", "`parallel` but has no sweep"),
        (f"{SHORT}max_hours: 2\nestimate_hours: 6\n", "estimate_hours 6 is more than max_hours 2"),
        (f"{SHORT}params: {{api_key: abc}}\n", "params.api_key looks like a secret by its name."),
        (
            f"{SHORT}sweep: {{lr: [1, 2]}}\noutputs: {{m: 's3://b/m'}}\n",
            "All 2 tasks of step main write output m to one URL.",
        ),
    ],
)
def test_what_is_allowed_but_probably_not_meant_is_a_warning(text, warning):
    parsed = jobfile.parse(text)

    assert [sentence for sentence in parsed.warnings if sentence.startswith(warning) or warning in sentence]
    assert parsed.spec is not None


def test_a_file_that_is_as_it_should_be_has_no_warnings():
    assert jobfile.parse(WHOLE).warnings == ()


def test_a_fault_of_one_key_does_not_make_faults_of_those_who_name_it():
    text = (
        "gpujob: 1\nname: solar\nparams: {lr: null}\nsteps:\n"
        "  - {name: SFT, sweep: {seed: []}, outputs: {m: nowhere}, "
        "command: [a, '{{ params.lr }}', '{{ params.seed }}']}\n"
        "  - {name: eval, needs: [SFT], command: [b, '{{ steps.SFT.outputs.m | json }}']}\n"
    )

    keys = [error.key for error in jobfile.parse(text).errors]

    assert keys == ["params.lr", "steps[0].name", "steps[0].sweep.seed", "steps[0].outputs.m"]


def test_after_two_hundred_errors_the_rest_is_only_counted():
    errors = jobfile.parse(SHORT + "".join(f"k{place}: 1\n" for place in range(1000))).errors

    assert len(errors) == 201
    assert "more than 200 errors" in errors[-1].message


def test_a_job_of_ten_thousand_tasks_is_taken():
    axes = ", ".join(f"{key}: [{', '.join(map(str, range(10)))}]" for key in "abcd")

    assert len(spec_of(f"{SHORT}sweep: {{{axes}}}\n").steps[0].sweep or ()) == 10_000


def test_a_grid_larger_than_numbers_can_be_printed_is_refused():
    axes = ", ".join(f"k{place}: [{', '.join(map(str, range(10)))}]" for place in range(1500))

    assert "more than 1,000,000,000 tasks" in said(f"{SHORT}sweep: {{{axes}}}\n")


def test_lists_that_multiply_when_filled_are_refused():
    many = ", ".join(map(str, range(4000)))
    text = (
        "gpujob: 1\nname: solar\nsteps:\n"
        f"  - {{name: a, sweep: {{x: [{many}]}}, command: [a], outputs: {{m: 's3://b/{{{{ task }}}}'}}}}\n"
        f"  - {{name: b, needs: [a], sweep: {{x: [{many}]}}, command: [b, '{{{{ steps.a.outputs.m | json }}}}']}}\n"
    )

    assert "longer than 16,000,000 characters" in said(text)
