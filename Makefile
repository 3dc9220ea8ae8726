# Each target makes what it needs, starting from Python 3.11 or newer. Another Python: make test PYTHON=python3.12
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Modules are compiled when they are first imported: most of what is installed never is.
PIP    := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints-dev.txt

# What every process of the tests imports is compiled once, where it is installed, and not by several at the same time.
COMPILED_dev := cryptography.x509, flwr.app, formulaic, hypothesis, matplotlib.pyplot, numba, nvflare, pandas, polars, \
    pydantic, pytest, ray, rich, scipy.optimize, scipy.sparse.linalg, scipy.stats, sklearn.utils.estimator_checks, torch

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo federation-demo hospitals test soak lint format bench bench-peers bench-compare papers docs dist clean

help:
	@echo "make demo    install, fit 160 schools, say where the model and the report lie"
	@echo "make federation-demo  four hospitals, one process each, over NVFlare and over Flower"
	@echo "make test    install what the tests need, run the tests"
	@echo "make soak    the long forms of tests: thousands of faults, damaged messages and draws"
	@echo "make lint    check style and types"
	@echo "make format  rewrite the code in the project's style"
	@echo "make bench   compare speed and accuracy with lme4 and GPBoost"
	@echo "make bench-peers  compare with other libraries, as far as they are installed, and write docs/peers.md"
	@echo "make bench-compare BASE=main  compare processor times with those of another commit; never fails on them"
	@echo "make papers  make the papers' tables and figures again, into build/papers; one: make papers NAME=001/table1"
	@echo "make docs    build the documentation into build/docs"
	@echo "make dist    build the source and the wheel, and fit a table with nothing but the wheel"
	@echo "make clean   remove builds and the environment"

demo: $(VENV)/.data
	@mkdir -p build
	$(BIN)/coterie data fetch hsb82 --out build/hsb82.csv --force
	$(BIN)/coterie fit build/hsb82.csv --formula "mAch ~ cses" --client school --cluster sector --out build/demo
	@echo "The model is in build/demo, the report is build/demo/report.html"

federation-demo:
	$(MAKE) --no-print-directory VENV=$(VENV)-federation hospitals

hospitals: $(VENV)/.federation
	$(BIN)/python examples/hospitals.py --engine nvflare
	$(BIN)/python examples/hospitals.py --engine flower --steps 10 --looks 2

test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

soak: $(VENV)/.dev
	$(BIN)/python -m pytest -m soak --numprocesses auto --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check --output-format concise .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

bench-peers: $(VENV)/.bench
	$(BIN)/python -m benchmarks.peers $(PEERS)

bench-compare: $(VENV)/.dev
	$(BIN)/python -m benchmarks.against_base $(or $(BASE),main)

papers: $(VENV)/.papers
	$(BIN)/python -m papers $(or $(NAME),--all)

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "The documentation is build/docs/index.html"

dist: $(VENV)/.made
	$(PIP) build
	rm -rf dist && $(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv dist/bare && dist/bare/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd dist && bare/bin/coterie data fetch heart --out heart.csv && bare/bin/coterie fit heart.csv \
	    --formula "disease ~ age + sex" --client hospital --family binomial --out model
	@echo "dist has the source and the wheel, which fits a table with nothing else installed"

clean:
	rm -rf build dist $(VENV) $(VENV)-federation

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	    "coterie needs Python 3.11 or newer; name one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Stamps: installed again only when the requirements change.
$(VENV)/.data $(VENV)/.dev $(VENV)/.bench $(VENV)/.papers $(VENV)/.docs $(VENV)/.federation: $(VENV)/.%: $(VENV)/.made pyproject.toml constraints-dev.txt
	$(PIP) --editable ".[$*]"
	$(if $(COMPILED_$*),$(BIN)/python -c "import $(COMPILED_$*)")
	@touch $@
