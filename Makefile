# `make train` and `make test` do all the set-up, from nothing. Needs Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKDIR ?= runs/clutter

# Else every process would compile all that it imports: pip has not, and the tests start many.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test check lint docs audit versions bench clean

train: $(VENV)/requirements  ## Trains an ensemble on generated images and prints the report.
	$(BIN)/python train.py --config=configs/clutter_ensemble.py --workdir=$(WORKDIR)

# A file's tests run in one process, so that what they share is made once.
# Files come in the order of tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadgroup --no-loadscope-reorder

test: $(VENV)/requirements-dev  ## Runs the tests for every save.
	$(PYTEST) $(TESTS)

check: $(VENV)/requirements-dev  ## Runs the tests that are too slow for every save.
	$(PYTEST) -m check $(TESTS)

lint: $(VENV)/requirements-dev  ## Checks style, format, types, who may import whom.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m scripts.first_words
	$(BIN)/python -m scripts.size_limits

docs: $(VENV)/requirements-docs  ## Builds the documentation site in build/docs.
	$(BIN)/sphinx-build -nW --keep-going -q -d build/doctrees docs build/docs

audit: $(VENV)/requirements  ## Looks for known vulnerabilities of all that is required, by PyPI.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.10,<3'
	@$(BIN)/pip-audit --strict --progress-spinner=off --requirement requirements.txt || \
	  { echo "audit: NOT AUDITED, or vulnerable: the lines above say which"; exit 1; }

versions: $(VENV)/requirements-dev  ## Tries every Python, and the lowest and highest packages that are allowed.
	$(BIN)/python -m scripts.try_versions

bench: $(VENV)/requirements  ## Measures training, evaluation and sampling against their peers.
	for name in train_throughput evaluation hmc_gradient numpyro_nuts movielens_gradient scaling rwm; do \
	  $(BIN)/python benchmarks/compare.py $$name --out=benchmarks/results/$$name.json || exit 1; done
	$(BIN)/python benchmarks/rwm.py --out=benchmarks/results/rwm.json --images=docs/images
	PYTHONPATH=. $(BIN)/python benchmarks/scaling.py --image=docs/images/scaling.png

clean:
	rm -rf $(VENV)

# Python compiles what is imported: not all of what is installed, which takes half a minute.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# The checkout itself, too: so are `ensemble` on the terminal and `import ensemble` anywhere.
$(VENV)/requirements: requirements.txt $(wildcard requirements-*.txt) pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/requirements-dev: requirements-dev.txt $(VENV)/requirements
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(VENV)/requirements-docs: requirements-docs.txt $(VENV)/requirements-dev
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -r requirements-docs.txt
	touch $@
