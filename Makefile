# Each target sets up what it needs in .venv, test-oldest in .venv-oldest, test-projects in .venv-projects; nothing
# outside this folder is touched.
PYTHON ?= python3
BIN := .venv/bin
# The lowest Python that can run here.
OLDEST_PYTHON ?= $(shell for name in python3.10 python3.11; do $$name -c '' 2>/dev/null && echo $$name && break; done)
OLDEST := .venv-oldest/bin
NEWEST := .venv-newest/bin
PROJECTS := .venv-projects/bin
# The release of torch that `make test-newest` takes; TORCH=torch for the newest, with its gigabytes of CUDA and with
# every test.
TORCH ?= torch==2.13.0
# A worker a core; `make test TESTS=tests/layers` for some of them in this process.
TESTS ?= --numprocesses auto --dist worksteal

# What reads other libraries' names.
READERS := tests/integrations tests/checkpoints tests/modelfiles tests/evaluation tests/tuning tests/examples tests/inputs tests/publish
NEWEST_TESTS ?= --numprocesses auto --dist worksteal $(if $(filter torch,$(TORCH)),tests,$(READERS))

.PHONY: demo test test-all test-oldest test-newest test-projects check docs bench bench-length clean

demo: .venv/base
	$(BIN)/posembed compare lengths --out runs/demo
	$(BIN)/posembed report runs/demo

test: .venv/dev
	$(BIN)/python -m pytest $(TESTS)

# Every case of every test, examples and guide trained for all their steps, and the lowest versions: each night, and
# before a release.
test-all: .venv/dev test-oldest test-projects
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-deps $(TRAINED)
	$(BIN)/python -m pytest --whole $(TESTS)

# Files of other projects, loaded by the projects' own code.
test-projects: .venv-projects/dev
	POSEMBED_PROJECTS=1 $(PROJECTS)/python -m pytest tests/projects

# The same tests with the lowest versions that pyproject.toml allows, all together.
test-oldest: .venv-oldest/dev
	$(OLDEST)/python -m pytest $(TESTS)

# What reads other libraries, with the newest release of every one of them: before each landing.
test-newest: .venv-newest/dev
	$(NEWEST)/python -m pytest $(NEWEST_TESTS)

check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(TESTS)

# The documentation site. A warning is an error. The tests build it too.
docs: .venv/docs
	$(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html in a browser."

# Speed, each claim beside its peers and its limit. What takes an hour or more has a target of its own.
bench: .venv/dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps --requirement benchmarks/requirements.txt
	$(BIN)/python benchmarks/lookup.py
	$(BIN)/python benchmarks/learned_layer.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/attention.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/by_distance.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/lab.py --command
	$(BIN)/python benchmarks/many_documents.py
	$(BIN)/python benchmarks/startup.py

bench-length: .venv/dev
	$(BIN)/python benchmarks/length.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/base: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/docs: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@ .venv/base

# Python compiles what the tests import, once for all their processes; pip would compile everything that it installs.
export PYTHONDONTWRITEBYTECODE :=

# rxnmapper, which carries a trained model, brings a package named tests, which would hide ours.
WITHOUT_TESTS = rm -rf $(1)/lib/python3*/site-packages/tests

# Peers of our tests: timm asks for torchvision, which its code for position tables does without, and what
# x-transformers asks for would bring more than its encodings need. Of rxnmapper only a trained model is read, and of
# rxnfp, for `make test-all`, three of 75 MB together.
PEERS := timm x-transformers loguru einops einx torch-einops-utils frozendict rxnmapper
TRAINED := rxnfp

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev,docs,hf,datasets,ray]'
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-deps $(PEERS)
	$(call WITHOUT_TESTS,.venv)
	@touch $@ .venv/base .venv/docs

# Made anew when a version changes: what an older file had installed must not stay.
.venv-oldest/dev: pyproject.toml constraints-oldest.txt
	$(OLDEST_PYTHON) -m venv --clear .venv-oldest
	$(OLDEST)/python -m pip install --quiet --constraint constraints-oldest.txt --editable '.[dev,docs,hf,datasets,ray,track]'
	$(OLDEST)/python -m pip install --quiet --constraint constraints-oldest.txt --no-deps $(PEERS)
	$(call WITHOUT_TESTS,.venv-oldest)
	@touch $@

.venv-projects/dev: pyproject.toml constraints.txt tests/projects/requirements.txt
	$(PYTHON) -m venv --clear .venv-projects
	$(PROJECTS)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev,hf]'
	$(PROJECTS)/python -m pip install --quiet --no-compile --no-deps --requirement tests/projects/requirements.txt
	@touch $@

# Upgraded each time: what is newest changes from day to day.
.PHONY: .venv-newest/dev
.venv-newest/dev:
	test -x $(NEWEST)/python || $(PYTHON) -m venv .venv-newest
	$(NEWEST)/python -m pip install --quiet --no-compile --upgrade --upgrade-strategy eager $(TORCH) --editable '.[dev,docs,hf,datasets,ray]'
	$(NEWEST)/python -m pip install --quiet --no-compile --upgrade --no-deps $(PEERS)
	$(call WITHOUT_TESTS,.venv-newest)

clean:
	rm -rf .venv .venv-oldest .venv-newest .venv-projects build/site
