# `make` lists the targets. Everything lives in .venv, made on first use and again when the requirements change.
# Another interpreter has an environment of its own: `make test PYTHON=python3.12` uses .venv-python3.12.
PYTHON ?= python3
VENV   ?= .venv$(addprefix -,$(filter-out python3,$(notdir $(PYTHON))))
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
SLOW_READY := $(VENV)/.slow-ready
AS_ROOT := $(shell test "$$(id -u)" = 0 || echo sudo)
# Asks no questions, and waits for another apt-get.
APT := $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get --quiet --quiet -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3
# Constrains the package's build environment too.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-pythons test-lowest test-slow check format bench fill docs notebooks browser clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "nearshot needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 test"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

$(SLOW_READY): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[slow]'
	@touch $@

# Memory that was freed is kept: glibc would return it to the system after every operation.
demo bench: export MALLOC_MMAP_MAX_ := 0
demo bench: export MALLOC_TRIM_THRESHOLD_ := 2000000000
demo: $(READY)  ## train and compare the losses on letters of unseen scripts, in three minutes
	$(BIN)/python examples/compare_losses.py --output examples/output

test: check  ## what CI runs first: checks, all tests but the slow ones, doctests, examples; prints the ten slowest
	$(BIN)/python -m pytest -n auto --dist loadfile --durations 10

test-pythons:  ## the same with Python 3.12 and 3.13, where they are installed; by hand, before a release
	@for python in python3.12 python3.13; do \
		if $$python --version; then $(MAKE) test PYTHON=$$python || exit 1; fi; \
	done

test-lowest: $(READY)  ## the tests with the lowest versions that pyproject.toml allows; by hand, before a release
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-lowest
	$(BIN)/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct --editable '.[dev]'
	.venv-lowest/bin/python -m pytest -n auto --dist loadfile

test-slow: $(SLOW_READY)  ## what CI runs then: browser, Ray, kills, every recipe; prints the twenty slowest
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile --durations 20

check: $(READY)  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## format the code and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## side-by-side timings against peers; writes benchmarks/results
	$(BIN)/python benchmarks/nca_loss.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/estimator.py
	$(BIN)/python benchmarks/predict.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/augmentation.py
	$(BIN)/python benchmarks/photos_per_minute.py
	$(BIN)/python benchmarks/damage.py
	$(BIN)/python benchmarks/attack.py

fill:  ## put the tables and figures that commands made into the pages that show them
	$(PYTHON) docs/summary.py
	$(PYTHON) docs/fill.py

docs: $(DOCS_READY)  ## build the documentation into site/; open site/index.html, no server is needed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # quiet, it would not count its warnings

notebooks: $(DOCS_READY)  ## run the notebooks and store their outputs, which the documentation shows
	cd docs/notebooks && $(abspath $(BIN))/jupyter execute --inplace --NotebookClient.record_timing=False *.ipynb

browser:  ## install Debian's Chromium for the tests that open pages; without it they are skipped
	@command -v chromium || { $(APT) update && $(APT) install --yes chromium; }

clean:  ## remove the environment and everything built
	rm -rf .venv .venv-* site .mypy_cache .ruff_cache .pytest_cache .hypothesis
