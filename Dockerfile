# Two images from one file:
#   docker build --target scheduler -t registry.example.com/gpujob/scheduler:0.1.0 .
#   docker build --target bot       -t registry.example.com/gpujob/bot:0.1.0 .
# Every dependency comes from requirements.lock with its hash. The processes run as a numeric user, need no shell, and
# write nothing but /tmp and what is mounted.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
WORKDIR /build
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY manifests/image_lock.py manifests/image_lock.py
COPY bot bot
COPY scheduler scheduler
RUN python manifests/image_lock.py hatchling > build.lock \
 && python -m venv tools \
 && tools/bin/pip install --no-cache-dir --only-binary :all: --require-hashes -r build.lock \
 && tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels .

FROM build AS build-scheduler
RUN python manifests/image_lock.py scheduler postgres > image.lock \
 && python -m venv /opt/gpujob \
 && /opt/gpujob/bin/pip install --no-cache-dir --only-binary :all: --require-hashes -r image.lock \
 && /opt/gpujob/bin/pip install --no-cache-dir --no-deps wheels/*.whl

FROM build AS build-bot
RUN python manifests/image_lock.py bot postgres > image.lock \
 && python -m venv /opt/gpujob \
 && /opt/gpujob/bin/pip install --no-cache-dir --only-binary :all: --require-hashes -r image.lock \
 && /opt/gpujob/bin/pip install --no-cache-dir --no-deps wheels/*.whl

FROM python:${PYTHON}-slim AS runtime
ENV PATH=/opt/gpujob/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 65532:65532

FROM runtime AS scheduler
COPY --from=build-scheduler /opt/gpujob /opt/gpujob
ENTRYPOINT ["gpujob"]
CMD ["serve", "--health-port", "8080"]

FROM runtime AS bot
COPY --from=build-bot /opt/gpujob /opt/gpujob
ENTRYPOINT ["gpujob-bot"]
CMD ["serve", "--health-port", "8080"]
