"""Any job that a file can say, for the laws of reading, writing, hashing and filling."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from scheduler.jobs.faults import looks_secret
from scheduler.jobs.spec import Checkpoint, JobSpec, Priority, StepSpec

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12).filter(
    lambda text: "{{" not in text and not looks_secret(text)
)
values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    st.sampled_from(
        ["1e-5", "true", "null", "~", "", "0x1f", ".inf", "- a", "# b", "a: b", "'", '"', "🙂", "\u2028", "\t"]
    ),
)
names = st.from_regex(r"[a-z][a-z0-9-]{0,12}", fullmatch=True)
step_names = st.from_regex(r"[a-z]([a-z0-9-]{0,11}[a-z0-9])?", fullmatch=True)
words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
durations = st.integers(1, 10**9).map(lambda milliseconds: milliseconds / 1000)
times = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda at: at.replace(fold=0)
)


def mappings(of: st.SearchStrategy, **size: int) -> st.SearchStrategy:
    """Keys that stay different as environment variables."""
    return st.lists(st.tuples(words, of), unique_by=lambda pair: pair[0].upper(), **size).map(dict)


@st.composite
def sweeps(draw, params):
    taken = {key.upper() for key in params}
    keys = draw(
        st.lists(words.filter(lambda word: word.upper() not in taken), min_size=1, max_size=2, unique_by=str.upper)
    )
    if draw(st.booleans()):
        axes = [draw(st.lists(values, min_size=1, max_size=3)) for _ in keys]
        points = [{}]
        for key, axis in zip(keys, axes, strict=True):
            points = [point | {key: value} for point in points for value in axis]
        return tuple(points)
    point = st.fixed_dictionaries({}, optional=dict.fromkeys(keys, values)).filter(bool)
    return tuple(draw(st.lists(point, min_size=1, max_size=4)))


@st.composite
def specs(draw) -> JobSpec:
    params = draw(mappings(values, max_size=3))
    names_of_steps = draw(
        st.lists(step_names, min_size=1, max_size=4, unique=True).filter(
            lambda drawn: not any(name.rpartition("-")[0] in drawn for name in drawn)
        )
    )
    steps = []
    for place, name in enumerate(names_of_steps):
        needs = tuple(draw(st.lists(st.sampled_from(names_of_steps[:place]), unique=True))) if place else ()
        gpus = draw(st.sampled_from([(0,), (1,), (4,), (8, 4), (4, 2, 1)]))
        steps.append(
            StepSpec(
                name=name,
                command=(draw(texts.filter(str.strip)), *draw(st.lists(texts, max_size=3))),
                needs=needs,
                any=bool(needs) and draw(st.booleans()),
                image=draw(st.sampled_from(["", "train:1", "reg.example.com:5000/a/b@sha256:00"])),
                gpus=gpus,
                nodes=draw(st.integers(1, 4)) if 0 not in gpus else 1,
                sweep=draw(st.none() | sweeps(params)),
                parallel=draw(st.none() | st.integers(1, 9)),
                outputs=draw(
                    mappings(st.sampled_from(["s3://b/{{ task }}", "file:///x y", "s3://b/'\"#: "]), max_size=2)
                ),
            )
        )
    start = draw(st.none() | times)
    return JobSpec(
        name=draw(names),
        steps=tuple(steps),
        team=draw(st.just("") | names),
        image=draw(st.sampled_from(["", "train:1"])),
        params=params,
        secrets=draw(st.sampled_from([{}, {"HF_TOKEN": "nlp-secrets/hf-token"}])),
        max_hours=draw(st.none() | st.floats(0.001, 8760)),
        estimate_hours=draw(st.none() | st.floats(0.001, 8760)),
        checkpoint=draw(
            st.none()
            | st.builds(Checkpoint, every_s=durations, on_sigterm=st.booleans(), save_s=durations | st.just(0.0))
        ),
        priority=draw(st.sampled_from(Priority)),
        retries=draw(st.integers(0, 20)),
        start_after=start,
        deadline=None if start else draw(st.none() | times),
        workdir=draw(st.just("") | texts.filter(bool)),
    )
