# One image for workers, the monitor and the command line; compose.yaml says which of them a container is.

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
COPY . .
RUN python -m venv /opt/uplift \
 && /opt/uplift/bin/pip install --require-hashes --no-deps -r requirements.lock \
 && /opt/uplift/bin/pip install --no-deps --no-build-isolation .

FROM python:3.11-slim
# bubblewrap holds what judges run; tini passes signals on and buries the children of ended processes.
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin uplift \
 && install -d -o uplift -g uplift /work
COPY --from=build /opt/uplift /opt/uplift
ENV PATH=/opt/uplift/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /work
ENTRYPOINT ["tini", "--"]
CMD ["uplift", "--help"]
