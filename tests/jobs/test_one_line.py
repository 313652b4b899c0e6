from __future__ import annotations

import pytest

from scheduler.jobs import jobfile
from scheduler.jobs.spec import Checkpoint, JobSpec, Priority, StepSpec

FULL = (
    "submit image=reg.example.com/nlp/train:1.4 gpus=2 name=solar param.lr=1e-5 param.base='a b' team=nlp "
    "checkpoint=20m max=12h estimate=90m priority=high nodes=2 retries=1 output.model=s3://b/{{job.id}} "
    "secret.HF_TOKEN=nlp/hf -- python train.py --lr '{{ params.lr }}' -- rest"
)


def spec_of(line: str) -> JobSpec:
    parsed = jobfile.one_line(line)
    assert parsed.spec is not None, jobfile.shown(parsed.errors)
    return parsed.spec


def said(line: str) -> str:
    return jobfile.shown(jobfile.one_line(line).errors)


def test_a_line_is_a_job_of_one_step():
    assert spec_of(FULL) == JobSpec(
        name="solar",
        image="reg.example.com/nlp/train:1.4",
        params={"lr": 1e-5, "base": "a b"},
        team="nlp",
        checkpoint=Checkpoint(every_s=1200),
        max_hours=12,
        estimate_hours=1.5,
        priority=Priority.HIGH,
        retries=1,
        secrets={"HF_TOKEN": "nlp/hf"},
        steps=(
            StepSpec(
                name="main",
                gpus=(2,),
                nodes=2,
                command=("python", "train.py", "--lr", "{{ params.lr }}", "--", "rest"),
                outputs={"model": "s3://b/{{job.id}}"},
            ),
        ),
    )


def test_a_line_reads_as_the_file_that_is_made_of_it():
    assert jobfile.parse(jobfile.dump(spec_of(FULL))).spec == spec_of(FULL)


def test_slk_21_quotes_dashes_and_spaces_of_phones_count_as_ascii():
    options = "image=train:1\u00a0gpus=4 param.base=\u201cmy run\u201d"
    command = "python train.py \u2014lr \u2018{{ params.base }}\u2019 \u2013\u2013x a\u2014b"

    spec = spec_of(f"{options} \u2014 {command}")

    assert spec.steps[0].command == ("python", "train.py", "--lr", "{{ params.base }}", "--\u2013x", "a\u2014b")
    assert spec.params == {"base": "my run"}


@pytest.mark.parametrize(
    "line", ["gpus=4 -- x", "submit gpus=4 -- x", "--gpus=4 -- x", "--gpus 4 -- x", "\u2014gpus 4 -- x"]
)
def test_options_may_be_typed_like_those_of_a_program(line):
    assert spec_of(line).steps[0].gpus == (4,)


@pytest.mark.parametrize(
    ("options", "checkpoint"),
    [("checkpoint=none", None), ("checkpoint=1h30m", Checkpoint(every_s=5400)), ("", Checkpoint())],
)
def test_a_checkpoint_is_none_or_a_time_between_two(options, checkpoint):
    assert spec_of(f"{options} -- x").checkpoint == checkpoint


def test_several_numbers_of_gpus_are_choices():
    assert spec_of("gpus=4,8 -- x").steps[0].gpus == (8, 4)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("image=reg.example.com/nlp/Train_SFT:1.4 -- python x.py", "train-sft"),
        ("image=reg.example.com:5000/train@sha256:00 -- x", "train"),
        ("-- python -u jobs/train_digits.py --fast", "train-digits"),
        ("-- torchrun --standalone train.py", "train"),
        ("-- ./7b.sh", "job-7b"),
        ("-- python", "python"),
        ("-- --help", "job"),
        (f"-- {'long-' * 20}", "long-" * 7 + "long"),
    ],
)
def test_a_job_without_a_name_is_called_after_its_image_or_program(line, name):
    assert spec_of(line).name == name


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("chekpoint=none -- x", ['line 1, chekpoint = "none": is no known word; did you mean `checkpoint`?']),
        ("gpus=2", ["line 1, command: is missing; it comes last, after --, like `-- python train.py`"]),
        ("gpus=two -- x", ['line 1, gpus = "two": must be a whole number of 0 to 1024, like `gpus: 4`']),
        ("gpus=1 gpus=2 -- x", ["line 1, gpus: stands twice; keep one"]),
        ("max=soon -- x", ['line 1, max = "soon": must be hours above 0, at most 8760']),
        ("checkpoint=30 -- x", ['line 1, checkpoint = "30": must be a duration with its unit: 60s, 30m, 12h or 1h30m']),
        ("name='x -- x", ["line 1: a quote is opened and never closed; close it, or put a \\ before it"]),
        (
            "name=X param.a-b=1 -- x '{{ params.c }}'",
            [
                'line 1, name = "X": must be a-z 0-9 and -, at most 40 characters, starting with a letter',
                'line 1, param.a-b = "a-b": is no name for this: use letters, digits and _, not starting with a digit, '
                "at most 60 characters",
                "line 1, command[1] = {{ params.c }}: `params.c` is not known in task main; there are none",
            ],
        ),
    ],
)
def test_errors_of_a_line_speak_its_own_words(line, sentences):
    assert said(line).splitlines() == sentences


def test_a_word_without_a_value_is_told_where_the_command_goes():
    assert (
        said("gpus=1 python train.py")
        .splitlines()[0]
        .startswith('line 1 = "python": is not KEY=VALUE; the command comes after --. Keys: image, gpus, name,')
    )


def test_a_line_longer_than_a_message_is_refused():
    assert "limit 20,000; send a job file instead" in said("-- " + "x" * 20_000)


def test_a_secret_on_a_line_is_refused_and_not_shown():
    shown = said("param.x=hf_abcdefghijklmnopqrstuvwx token=hunter2 secret.X=hunter2 hf_abcdefghijklmnopqrstuvwx -- x")

    assert "abcdefgh" not in shown
    assert "hunter2" not in shown
    assert len(shown.splitlines()) == 4
