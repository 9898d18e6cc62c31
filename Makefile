# The everyday verbs. Each is enough by itself in a fresh clone: it first builds .venv, with the
# first suitable Python among $(PYTHON), python3 and python3.13 down to python3.10.
#
#   make compare-cluster ARGS="--scenario burst"   more arguments for the command behind a verb
#   make test PYTHON=/path/to/python3.12           the Python to build .venv with

VENV = .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install -qq -c constraints.txt
PYTEST = $(BIN)/python -m pytest
ARGS =
# Of configs/studies, see docs/studies.md; `make study STUDY=load` plays one.
STUDY = benchmark exploration load fleet admission requests destinations cema-hyperparameters
# Test processes: each compiles the kernels once, so more than a few do not pay.
JOBS = 2
# Extras of the installs.
PLOTS = plots,optimal
STUDIES = $(PLOTS),studies
QUALITY = $(PLOTS),quality
DEV = $(PLOTS),studies,quality,render,agents,scale,dev
COMPARE = $(BIN)/routing-gym compare
# A second run replaces the first, unless it goes on with it.
AGAIN = $(if $(findstring --resume,$(ARGS)),,--overwrite)

.PHONY: help compare compare-cluster compare-cloud-edge study study-learned bench test test-slow test-all lint format clean
.NOTPARALLEL:

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s%s\n", $$1, $$2 }' Makefile

compare: compare-cluster compare-cloud-edge ## run both comparisons; tables here, files in results/

compare-cluster: $(VENV)/.plots ## compare the routers of the inference cluster
	$(COMPARE) cluster --out results/cluster $(AGAIN) $(ARGS)

compare-cloud-edge: $(VENV)/.plots ## compare the routers of cloud–edge batches
	$(COMPARE) cloud-edge --out results/cloud-edge $(AGAIN) $(ARGS)

study: $(VENV)/.studies ## play the studies, on from where they were left, into docs/benchmark.md and results/
	@set -e; for study in $(STUDY); do \
		$(BIN)/routing-gym study $$study --out results/$$study --docs docs/benchmark.md $(ARGS); \
	done

study-learned: $(VENV)/.studies ## hold the trained routers against the others, and write their report
	$(BIN)/routing-gym study learned --out results/learned $(ARGS)
	$(BIN)/routing-gym report-learned results/learned

bench: $(VENV)/.quality ## print how fast the environments are on this machine
	$(BIN)/routing-gym bench $(ARGS)

test: $(VENV)/.dev ## run the tests that are not marked slow
	$(PYTEST) -m "not slow" -n $(JOBS) $(ARGS)

# One process, as speed is measured here. Status 5 says that no test is marked slow.
test-slow: $(VENV)/.dev ## run the tests that are marked slow
	$(PYTEST) -m slow $(ARGS) || test $$? -eq 5

test-all: test test-slow ## run every test

lint: $(VENV)/.dev ## check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev ## put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove .venv, builds and caches; results stay
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# A missing interpreter (it may be a link whose Python is gone) makes everything below out of date.
$(BIN)/python:

$(VENV)/.created: $(BIN)/python
	@found=; \
	for python in "$(PYTHON)" python3 python3.13 python3.12 python3.11 python3.10; do \
		version=$$("$$python" --version 2>&1) || continue; \
		found="$$found $$python ($$version)"; \
		"$$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null || continue; \
		echo "Creating $(VENV) with $$python ($$version)"; \
		"$$python" -m venv --clear $(VENV) && $(BIN)/python -m pip install -qq "pip>=22" && touch $@; \
		exit; \
	done; \
	echo "error: Routing Gym needs Python 3.10 to 3.13 with its venv module (Debian: python3-venv)." >&2; \
	echo "Found:$${found:- no Python}. Name another: make PYTHON=/path/to/python ..." >&2; \
	exit 1

# Extras, how long, and the smaller installs that are then there too.
# .created is away while pip works, so an install that was interrupted starts over.
define install
	@echo "Installing routing-gym[$(1)] into $(VENV) ($(2) the first time)"
	@rm -f $(VENV)/.created
	@$(PIP) -e ".[$(1)]"
	@touch $(VENV)/.created
	@touch $(3) $@
endef

$(VENV)/.plots: $(VENV)/.created pyproject.toml constraints.txt
	$(call install,$(PLOTS),about a minute)

$(VENV)/.studies: $(VENV)/.created pyproject.toml constraints.txt
	$(call install,$(STUDIES),about a minute,$(VENV)/.plots)

$(VENV)/.quality: $(VENV)/.created pyproject.toml constraints.txt
	$(call install,$(QUALITY),about a minute,$(VENV)/.plots)

$(VENV)/.dev: $(VENV)/.created pyproject.toml constraints.txt
	$(call install,$(DEV),minutes,$(VENV)/.plots $(VENV)/.studies $(VENV)/.quality)
