# Every command a user types. `make help` lists them; the work is done by `python -m helpers`.
#
#   PROFILE=embedded   whose traces and whose evaluator: a folder of params/
#   NB=                one notebook by its name, say NB=01_global_replay
#   SET=               other parameters, say SET="DRAWS=2000 FIRST=10"
#   WITHOUT=           notebooks that are left out, say WITHOUT=A1_controls
#   N=                 how many (trajectories, questions, cells), where a command counts something
#   STACK=qwen-1.5b    an evaluator of params/stacks.yml
#   PUBMEDQA=          a PubMedQA file, for PROFILE=pubmedqa
#   ARGS=              anything else for the command behind a target
#   PY=python          an environment of your own, say conda's, instead of .venv

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

PROFILE ?= embedded
NB ?=
SET ?=
WITHOUT ?=
N ?=
STACK ?= qwen-1.5b
PUBMEDQA ?=
ARGS ?=
export PROFILE NB SET WITHOUT N PUBMEDQA
export UV_COMPILE_BYTECODE := 1
export PYTHONHASHSEED := 0
export PYTHONPATH := $(CURDIR)

# -- set-up -------------------------------------------------------------------------------------------
# .venv from the lock, with uv where it is there; PY=python uses an environment that has everything already.

PY ?= .venv/bin/python
READY := $(if $(filter .venv/%,$(PY)),.venv/.ready)
PYTHONS ?= python3 python3.14 python3.13 python3.12 python3.11 python
IS_NEW = -c 'import sys; sys.exit(sys.version_info < (3, 11))'

.venv/.ready: requirements.lock
	@set -e; \
	if command -v uv >/dev/null 2>&1; then \
	  echo "Setting up .venv with uv."; \
	  [ -x .venv/bin/python ] || uv venv --quiet --python '>=3.11' .venv; \
	  uv pip sync --quiet --python .venv/bin/python --require-hashes requirements.lock; \
	  uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation -e . pip==26.3; \
	else \
	  found=; for p in $(PYTHONS); do if $$p $(IS_NEW) 2>/dev/null; then found=$$p; break; fi; done; \
	  if [ -z "$$found" ]; then echo "error: no Python 3.11 or newer on PATH. Install one, or say" \
	    "PYTHONS=/path/to/python; with uv on PATH, uv finds one." >&2; exit 1; fi; \
	  echo "Setting up .venv with $$found and pip; this takes a few minutes."; \
	  $$found -m venv .venv; \
	  .venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock; \
	  .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	fi; \
	.venv/bin/python -m helpers clean-sources; \
	touch $@

# -- commands -----------------------------------------------------------------------------------------

.PHONY: help reproduce report test lab freeze plan record why verify smoke probe model endpoint bench coverage lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Profiles (PROFILE=): $(patsubst params/%/common.yml,%,$(sort $(wildcard params/*/common.yml)))."
	@echo "Notebooks (NB=): $(sort $(basename $(notdir $(wildcard notebooks/*.ipynb notebooks/tools/*.ipynb))))."
	@echo 'Other parameters: SET="DRAWS=2000 FIRST=10". One notebook: make reproduce NB=01_global_replay'

reproduce: $(READY) ## execute what is out of date and write the report (PROFILE, NB, SET, WITHOUT; PUBMEDQA, N)
	@$(PY) -m helpers reproduce $(ARGS)

report: $(READY) ## write the HTML pages from the notebooks that are executed already (PROFILE)
	@$(PY) -m helpers report $(ARGS)

test: $(READY) ## unit tests, then the committed report again, cell by cell (ARGS)
	$(PY) -m pytest -q -n 2 --dist loadfile $(ARGS)
	TQDM_DISABLE=1 $(PY) -m pytest -q -n 2 --dist loadfile --nbval --nbval-current-env --nbval-cell-timeout 120 \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg $(wildcard outputs/embedded/*.ipynb)

lab: $(READY) ## open the notebooks in JupyterLab
	@$(PY) -m jupyter lab $(ARGS)

freeze: $(READY) ## run the actor on tasks that have no frozen trajectory yet (PROFILE, SET)
	@NB=freeze_traces $(PY) -m helpers reproduce $(ARGS)

plan: $(READY) ## calls, tokens, money and time before anything is asked (PROFILE, N)
	@$(PY) -m helpers plan $(ARGS)

record: $(READY) ## ask the evaluators for what is not recorded; stop and go on at any time (PROFILE, N)
	@$(PY) -m helpers record $(ARGS)

why: $(READY) ## why cells are not found: ARGS="--section 02_retry --trajectory traj-risk-03 --state 4" (PROFILE)
	@$(PY) -m helpers why $(ARGS)

verify: $(READY) ## ask a sample of the recorded questions again and compare (PROFILE, N)
	@$(PY) -m helpers verify $(ARGS)

smoke: $(READY) ## the whole report on simulated data, against a loopback endpoint
	@$(PY) -m tests.rehearsal.smoke

probe: $(READY) ## one to three calls that show what an evaluator's endpoint can do (STACK, PROFILE)
	@$(PY) -m helpers probe "$(STACK)" $(ARGS)

model: $(READY) ## fetch and verify the model file of an embedded evaluator (STACK)
	@$(PY) -m helpers model "$(STACK)" $(ARGS)

endpoint: $(READY) ## a loopback endpoint that misbehaves on demand, to rehearse a run for nothing (ARGS)
	@$(PY) -m tests.rehearsal.endpoint $(ARGS)

bench: $(READY) ## speed of acquisition and reduction, as ratios within one run (ARGS)
	@$(PY) -m tests.benchmarks $(ARGS)

coverage: $(READY) ## how often the 95% intervals hold the truth, by simulation; takes a while (ARGS)
	@$(PY) -m tests.coverage --folder outputs/embedded $(ARGS)

lock: ## renew requirements.lock from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --extra local --extra dev --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

clean: ## remove .venv, caches, failed notebooks, tries and the smoke profile; recordings and reports stay
	@rm -rf .venv .work .pytest_cache .hypothesis outputs/smoke outputs/tweaked *.egg-info
	@find $(wildcard helpers tests) -name __pycache__ -prune -exec rm -rf {} +
	@rm -f outputs/*/*.partial.ipynb outputs/*/*.failed.ipynb outputs/*/tools/*.failed.ipynb
