# Two commands do all set-up: `make demo` and `make test`. `make test-slow` runs the tests that `make test` leaves out.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEMO ?= examples/mlp.py

.PHONY: demo test test-slow test-torch lint gate docs clean

demo: $(VENV)/.installed
	$(BIN)/bottleneck run $(DEMO)

# Two tests at a time, those of a file one after the other: a file shares what it recorded. Python keeps the bytecode of
# the tests, whatever the environment says: to make it takes each process of pytest 20 s.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.installed-dev
	$(PYTEST) -m slow --hypothesis-profile thorough

# The commands under another torch, in an environment of its own, which pip fills with whatever CUDA that torch brings:
# make test-torch TORCH=2.6.0 [PYTHON=python3.12]
TORCH_VENV ?= .venv-torch-$(TORCH)
test-torch:
	$(if $(TORCH),,$(error name a version: make test-torch TORCH=2.6.0))
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)' '.[run]' pytest hypothesis $(WITH)
	$(TORCH_VENV)/bin/python -m pytest -m slow tests/any_torch

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The examples do per step what their lock-files in .bottleneck/ say, and no more.
gate: $(VENV)/.installed
	$(BIN)/bottleneck gate --only counters

# The documentation as a site in site/; open site/index.html. Fails on a link that leads nowhere.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The package in place, with the torch that the tests ran with. Compiled as pip compiles what it installs elsewhere.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e '.[run]'
	$(BIN)/python -m compileall -q bottleneck
	touch $@

# The same with the tools of tests and lint, which `make demo` does without.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[run,dev]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[run,docs]'
	touch $@

clean:
	rm -rf $(VENV) bottleneck-runs site .pytest_cache .mypy_cache .ruff_cache
