# dptune: what a developer runs. `make help` lists the targets.
#
# PYTHON is the interpreter that the environment is made with, VENV where it lies:
#   make test PYTHON=python3.12 VENV=/tmp/dptune-3.12
# INSTALL_OPTIONS are given to each `pip install`, in whose place INSTALL may name another installer, as in .ci/run. `make
# test` waits for the end of the file WAIT_FOR before it measures.
#
# `make gpu-check` on a card uses PYTHON, which must have torch; GPU_CHECK takes further options (tests/gpu/__main__.py).

PYTHON ?= python3
VENV ?= .venv
DEVICE ?= cuda
OUT ?= gpu-check

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALL := $(PIP) install $(INSTALL_OPTIONS)
BY := -c constraints.txt
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests) # the others need not be collected
# Three processes on two cores: tests that record wait for the processes they start, about a third of their time.
WORKERS := -n 3 --dist loadfile --no-loadscope-reorder
# Quick tests wait for nothing: two processes without pytest-xdist, each of which collects what it runs. One takes these.
FIRST_HALF := tests/measure tests/whatif tests/simulator tests/advise tests/compare tests/trace
QUICK := $(BIN)/python -m pytest -q -m quick

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test environment check lint format types layers tests tests-together tests-alone test-quick compiled test-thorough fuzz fuzz-sets gpu-wheels gpu-check bench-overhead bench-loading bench-proving bench-effects bench-first-use bench-gate bench-interface bench-predictions bench-replays bench-simulated bench-rules bench-searches bench-stragglers bench-traces bench-tuning bench-beside bench-unseen advice-bench docs pictures dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.profile ## record a small two-rank training run on this machine and report on it
	$(BIN)/dptune demo --record

environment: $(VENV)/.test ## set up the environment alone

test: $(VENV)/.test ## set up the environment, then `make check`
	@$(MAKE) --no-print-directory check

check: lint types layers tests ## what CI runs, in the environment that is there

lint: ## ruff: the linter, and whether the code is formatted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: ## let ruff format the code and fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: ## mypy --strict
	$(BIN)/mypy

layers: ## import-linter: who may import whom
	$(BIN)/lint-imports

tests: tests-together tests-alone ## pytest in three processes, each file in one of them, then tests that measure the machine; says what was skipped and why

tests-together: compiled
	$(BIN)/python -m pytest -rs $(WORKERS) --durations=25 -m "not thorough and not alone"

tests-alone: compiled # with nothing beside it: it measures what this machine and its links do; CI's other steps end first
	@while [ -e "$(WAIT_FOR)" ]; do sleep 1; done
	$(BIN)/python -m pytest -rs --durations=5 -m "alone and not thorough" $(ALONE)

test-quick: compiled ## without recordings, other programs, public traces, pictures and the full-screen report: a minute
	@log=$$(mktemp); $(QUICK) $(FIRST_HALF) >"$$log" 2>&1 & first=$$!; \
	$(QUICK) tests $(FIRST_HALF:%=--ignore=%); status=$$?; \
	wait $$first || status=$$?; cat "$$log"; rm "$$log"; exit $$status

compiled: # once, not in every process that a test starts: many run without a bytecode cache
	@$(BIN)/python -m compileall -q advisor rules

fuzz: $(VENV)/.test ## 100,000 damaged traces through the reader (long; resumes; tests/fuzz/results.json)
	$(BIN)/python -m tests.fuzz.mutate

fuzz-sets: $(VENV)/.test ## reports of 20,000 damaged sets of 2 to 4 ranks (long; resumes; tests/fuzz/set_results.json)
	$(BIN)/python -m tests.fuzz.sets

test-thorough: $(VENV)/.frameworks compiled ## what `make test` leaves out: more kinds of scripts, more examples, recordings without forks (long)
	$(BIN)/python -m pytest -rs $(WORKERS) -m "thorough and not alone"
	TESTS_START_EACH=1 $(BIN)/python -m pytest -rs $(WORKERS) -m "records and not thorough and not alone"
	$(BIN)/python -m pytest -rs $(WORKERS) --hypothesis-profile=thorough -m "hypothesis and not thorough and not alone"
	$(BIN)/python -m pytest -rs -m "thorough and alone" $(ALONE)

gpu-wheels: ## download what a bare GPU machine without a network needs for gpu-check, into gpu-wheels/
	$(PYTHON) -m tests.gpu.wheels gpu-wheels

gpu-check: $(if $(filter cpu,$(DEVICE)),$(VENV)/.profile) ## check dptune on a real card (7 minutes; resumes; OUT=folder); DEVICE=cpu rehearses without one
	$(if $(filter cpu,$(DEVICE)),$(BIN)/python,$(PYTHON)) -m tests.gpu --device $(DEVICE) --out $(OUT) $(GPU_CHECK)

bench-overhead: $(VENV)/.profile ## what recording costs (about half an hour; resumes; tests/benchmarks/results/)
	$(BIN)/python tests/benchmarks/overhead.py

bench-loading: $(VENV)/.test ## how fast traces are read, beside HTA (long; resumes)
	$(BIN)/python tests/benchmarks/loading.py

bench-proving: $(VENV)/.profile ## how often `dptune verify` is wrong (about two hours, on an idle machine; resumes)
	$(BIN)/python tests/benchmarks/error_rates.py

bench-searches: $(VENV)/.profile ## how often `dptune tune` is wrong, and what it finds: 10,000 simulated searches (minutes)
	$(BIN)/python tests/benchmarks/tune_errors.py

bench-tuning: $(VENV)/.frameworks ## how much of what fixed scripts save `dptune tune` saves (five hours, on an idle machine; MINUTES=15 runs a part; resumes)
	$(BIN)/python tests/benchmarks/tuning.py $(if $(MINUTES),--minutes $(MINUTES))

bench-beside: $(VENV)/.frameworks ## `dptune tune` beside `train-doctor fix` (four hours, on an idle machine; installs it; MINUTES=15 runs a part; resumes)
	$(BIN)/python tests/benchmarks/beside_train_doctor.py $(if $(MINUTES),--minutes $(MINUTES))

bench-effects: $(VENV)/.test ## what it finds of changes on a slow network (half an hour, as root, on an idle machine; resumes)
	$(BIN)/python tests/benchmarks/effects.py

bench-first-use: $(VENV)/.profile ## how long from a clone to the first proven advice (ten minutes, on an idle machine)
	$(BIN)/python tests/benchmarks/first_use.py

bench-gate: $(VENV)/.profile ## whether `dptune check` fails slower commits, and no others (an hour and a half, on an idle machine; resumes)
	$(BIN)/python tests/benchmarks/gate.py

bench-interface: $(VENV)/.test ## how long the full-screen report lets one wait (minutes; resumes)
	$(BIN)/python tests/benchmarks/interface.py

bench-predictions: $(VENV)/.test ## how good whatif is: predicted, then run (hours, as root, on an idle machine; resumes)
	$(BIN)/python tests/benchmarks/predictions.py
	$(BIN)/python tests/benchmarks/predictions_short.py
	$(BIN)/python tests/benchmarks/predictions_fsdp.py

bench-replays: $(VENV)/.test ## how public GPU traces replay, and how long that takes (minutes; needs ../shared/real_traces)
	$(BIN)/python tests/benchmarks/real_replays.py
	$(BIN)/python tests/benchmarks/replay_times.py

bench-simulated: $(VENV)/.test ## how near predictions for GPU steps are to an independent simulator (minutes; resumes)
	$(BIN)/python tests/benchmarks/simulated.py

bench-rules: $(VENV)/.test ## what the rules say of public traces (minutes; needs ../shared/real_traces)
	$(BIN)/python tests/benchmarks/real_advice.py

bench-traces: $(VENV)/.test ## what traces show by themselves (minutes; after bench-rules; needs ../shared)
	$(BIN)/python tests/benchmarks/traces.py

bench-stragglers: $(VENV)/.profile ## whether a report names the rank that stalls, and where (minutes; resumes)
	$(BIN)/python tests/benchmarks/stragglers.py

bench-unseen: $(VENV)/.frameworks ## whether advice is right on scripts no rule was written from (hours, on an idle machine; resumes)
	$(BIN)/python tests/benchmarks/unseen.py

advice-bench: $(VENV)/.frameworks ## whether advice names planted faults and keeps its word (hours, as root, idle machine; resumes)
	$(BIN)/python tests/benchmarks/advice.py

docs: $(VENV)/.docs ## build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "built: site/index.html"

pictures: $(VENV)/.test ## draw the README's pictures of the full-screen report anew
	$(BIN)/python docs/pictures.py

dist: $(VENV)/.test ## build the sdist, and the wheel from it, into dist/
	$(BIN)/python -m build --no-isolation

clean: ## remove what was built; the environment stays
	rm -rf dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# A stamp in the environment stands for one installation; a changed pyproject.toml or constraints.txt renews it.

$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "dptune needs Python 3.11 or newer; try: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.profile: $(VENV)/.pip pyproject.toml constraints.txt
	@echo "installing dptune and torch into $(VENV): a minute or two"
	@$(INSTALL) $(BY) --editable '.[profile]'
	@touch $@

$(VENV)/.test: $(VENV)/.pip pyproject.toml constraints.txt
	@echo "installing dptune, torch and what the tests need into $(VENV): some minutes"
	@$(INSTALL) $(BY) --editable '.[profile,hta,remote]' --group test --group frameworks
	@touch $(VENV)/.profile $@

# what only recordings of `make test-thorough` and of benchmarks need
$(VENV)/.frameworks: $(VENV)/.test
	@echo "installing further training frameworks into $(VENV)"
	@$(INSTALL) $(BY) --group more-frameworks
	@touch $@

# dptune is installed only if it is missing: an existing environment keeps its version.
$(VENV)/.docs: $(VENV)/.pip pyproject.toml constraints.txt
	@echo "installing what the documentation is built with into $(VENV)"
	@$(BIN)/python -c 'import dptune' 2>/dev/null || $(INSTALL) $(BY) --editable .
	@$(INSTALL) $(BY) --group docs
	@touch $@
