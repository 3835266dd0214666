# Both `make demo` and `make test` set themselves up from a bare Python 3.11; uv makes that faster where it exists.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOWEST := .venv-lowest
VERSIONS := -c constraints.txt
export VIRTUAL_ENV :=
export PYTHONPATH :=
# Hundreds of short processes: compiling our modules anew in each would take a tenth of the time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint types tests lowest bench chaos containers clean

$(READY): pyproject.toml constraints.txt
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
	  uv pip install --quiet --python $(BIN)/python $(VERSIONS) -e '.[anthropic,openai,monitor,dev]'; \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check $(VERSIONS) -e '.[anthropic,openai,monitor,dev]'; \
	fi
	@touch $(READY)

demo: $(READY)
	$(BIN)/uplift evaluate --standalone --task-suite examples/release-notes/suite.yaml \
	  --skill-path examples/release-notes/skill --baseline-path examples/release-notes/baseline \
	  --model sim:baseline=0.45,candidate=0.85,latency=0.2,cost=0.002,seed=7 --pass-k 3 --state-root .uplift/demo

test: $(READY)
	@$(MAKE) --no-print-directory -j 3 lint types tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

tests: $(READY)
	$(BIN)/python -m pytest -q -n 4 --dist loadgroup

# Once before a release: do the lowest versions that pyproject.toml allows still work? Only uv can choose them.
lowest:
	@command -v uv >/dev/null 2>&1 || { $(PYTHON) -m venv $(LOWEST) && \
	  $(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv; }
	@PATH="$$PATH:$(CURDIR)/$(LOWEST)/bin" $(MAKE) --no-print-directory \
	  VENV=$(LOWEST) VERSIONS='--resolution lowest-direct' tests

bench: $(READY)
	$(BIN)/python -m bench

chaos: $(READY)
	$(BIN)/python -m pytest -q -n 4 tests/chaos tests/test_shared_server.py --long

# compose.yaml on this machine's container engine; says in one line why where that cannot be.
containers:
	$(PYTHON) tests/containers.py

clean:
	rm -rf $(VENV) $(LOWEST) .uplift build *.egg-info
