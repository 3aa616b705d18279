# Every command a user types. `make help` lists them.
#
#   PROFILE=embedded   which folder of params/ sets the parameters (embedded, smoke, pubmedqa, paper)
#   NB=                one notebook by its name, say NB=01_global_replay
#   SET=               other parameters, say SET="DRAWS=2000 SEED=7"
#   WITHOUT=           notebooks that are left out, say WITHOUT=A1_controls
#   N=                 how many (trajectories, abstracts, cells), where a command counts something
#   STACK=qwen-1.5b    an evaluator of params/stacks.yml
#   PUBMEDQA=          a PubMedQA file, for PROFILE=pubmedqa
#   ARGS=              anything else for the command behind a target

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
export SET PUBMEDQA
export UV_COMPILE_BYTECODE := 1
export PYTHONHASHSEED := 0

# -- what there is, and what was asked for ------------------------------------------------------------

PROFILES := $(patsubst params/%/common.yml,%,$(sort $(wildcard params/*/common.yml)))
REPORTS := $(sort $(notdir $(basename $(wildcard notebooks/*.ipynb))))
# Notebooks that a profile leaves out unless NB names them: live on a user's own questions, everything but the global
# replay.
LEFT_OUT_embedded :=
LEFT_OUT_pubmedqa := 00_overview 02_retry 03_retrieval_face 04_matched_cube 05_bridge 06_source_only A1_controls
LEFT_OUT_pubmedqa += 07_step_diagnostics 08_evaluating_reasoners 09_debugging_reasoners
# A profile of your own: your traces need not come from this project's workflow, which these two run again.
LEFT_OUT_smoke :=
LEFT_OUT_paper :=
LEFT_OUT_$(PROFILE) ?= 08_evaluating_reasoners 09_debugging_reasoners
# Without a second evaluator there is no bridge; WITHOUT leaves out what your traces cannot have.
ifeq ($(shell sed -n '/^SECOND_STACK: *[^ ]/p' params/$(PROFILE)/common.yml),)
LEFT_OUT_$(PROFILE) += 05_bridge
endif
LEFT_OUT_$(PROFILE) += $(WITHOUT)
TOOLS := $(sort $(notdir $(basename $(wildcard notebooks/tools/*.ipynb))))

ifeq ($(filter $(PROFILES),$(PROFILE)),)
$(error no profile '$(PROFILE)' in params/. There are: $(PROFILES))
endif
ifneq ($(NB),)
ifneq ($(words $(NB)),1)
$(error NB names one notebook, and '$(NB)' is $(words $(NB)))
endif
ifeq ($(filter $(REPORTS) $(TOOLS),$(NB)),)
$(error no notebook '$(NB)' in notebooks/. There are: $(strip $(REPORTS) $(TOOLS)))
endif
endif

OUT := outputs/$(PROFILE)
STATE := .work/$(PROFILE)
EXECUTED := $(REPORTS:%=$(OUT)/%.ipynb)
EXECUTED_TOOLS := $(TOOLS:%=$(OUT)/tools/%.ipynb)
USUAL := $(filter-out $(LEFT_OUT_$(PROFILE):%=$(OUT)/%.ipynb),$(EXECUTED))
CHOSEN := $(if $(NB),$(filter %/$(NB).ipynb,$(EXECUTED)),$(USUAL))

# What an executed notebook depends on, besides its source. The recordings' journal is left out: a run writes it.
INPUTS := $(wildcard params/stacks.yml params/$(PROFILE)/*.yml data/*.jsonl data/*.csv data/recordings/*.parquet)
INPUTS += $(wildcard $(shell sed -n 's/^\(TASKS\|LIBRARY\|TRAJECTORIES\): *//p' params/$(PROFILE)/common.yml))
INPUTS += $(filter-out helpers/reporting/site.py tests/environment.py,$(wildcard helpers/*.py helpers/*/*.py))

# -- set-up -------------------------------------------------------------------------------------------
# An active conda environment that has everything is used as it is; otherwise .venv, from the lock.
# Executed notebooks depend on the stamp, so a fresh clone executes the committed report once.

CONDA_PYTHON := $(if $(CONDA_PREFIX),$(wildcard $(CONDA_PREFIX)/bin/python))
ifneq ($(CONDA_PYTHON),)
CONDA_FITS := $(shell '$(CONDA_PYTHON)' tests/environment.py >/dev/null 2>&1 && echo yes)
endif
ifeq ($(CONDA_FITS),yes)
PY := $(CONDA_PYTHON)
READY := .work/conda.ready
export PYTHONPATH := $(CURDIR)
else
PY := .venv/bin/python
READY := .venv/.ready
endif

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
	touch $@

.work/conda.ready: requirements.lock
	@mkdir -p $(@D) && touch $@ && echo "Using the active conda environment."

# -- inputs that a profile makes first ----------------------------------------------------------------

PREPARED_smoke := outputs/smoke/data/.ready
PREPARED_pubmedqa := outputs/pubmedqa/data/.ready
PREPARED := $(or $(PREPARED_$(PROFILE)),$(if $(filter embedded,$(PROFILE)),,$(STATE)/views.ready))

outputs/smoke/data/.ready: tests/rehearsal/simulate.py $(READY)
	@mkdir -p $(@D) && $(PY) -m tests.rehearsal.simulate $(@D) && touch $@

# Another file or another N makes the data again; traces that are there already are kept.
ifeq ($(PROFILE),pubmedqa)
.work/pubmedqa/source: FORCE
	@mkdir -p $(@D); \
	if [ -z "$$PUBMEDQA" ]; then \
	  [ -e $@ ] || { echo "error: say which questions: PUBMEDQA=<pqal_dev.json or ori_pqal.json> N=3" >&2; exit 1; }; \
	elif [ ! -r "$$PUBMEDQA" ]; then \
	  echo "error: $$PUBMEDQA: no such file; PUBMEDQA is a pqal_dev.json or ori_pqal.json." >&2; exit 1; \
	else \
	  echo "$(or $(N),3) $$PUBMEDQA" | cmp -s - $@ || echo "$(or $(N),3) $$PUBMEDQA" > $@; \
	fi

outputs/pubmedqa/data/.ready: .work/pubmedqa/source $(READY)
	@mkdir -p $(@D) && touch $(@D)/views.jsonl
	@read -r count path < $<; $(PY) -m helpers.study.pubmedqa "$$path" "$$count" $(@D)
	@$(PY) -m helpers.reporting.execute pubmedqa freeze_traces --set "$$SET" --output outputs/pubmedqa/tools/freeze_traces.ipynb
	@touch $@
endif

# Views that a profile's own generator will write; the shipped study's are in data/.
ifeq ($(filter embedded smoke pubmedqa,$(PROFILE)),)
VIEWS_FILE := $(shell sed -n 's/^VIEWS: *//p' params/$(PROFILE)/common.yml)
$(STATE)/views.ready: | $(STATE)
	@[ -e $(VIEWS_FILE) ] || { mkdir -p $(dir $(VIEWS_FILE)) && touch $(VIEWS_FILE); }
	@touch $@
endif

# -- the report ---------------------------------------------------------------------------------------

# Each notebook's last SET is remembered, so that another SET makes it out of date; a wrong SET is refused first.
QUOTED := '$(subst ','\'',$(SET))'
OTHER_SET := $(shell for name in $(REPORTS) $(TOOLS); do \
  printf '%s' $(QUOTED) | cmp -s - $(STATE)/$$name.set || echo $(STATE)/$$name.set; done)
$(OTHER_SET): FORCE

ONLY = $(if $(filter $*,$(NB)),--only)
$(STATE)/%.set: | $(READY) $(STATE)
	@[ -z "$$SET" ] || $(PY) -m helpers.reporting.params $(PROFILE) $* --set "$$SET" $(ONLY) >/dev/null
	@printf '%s' "$$SET" > $@

EXECUTE = $(PY) -m helpers.reporting.execute $(PROFILE) $* --set "$$SET" $(ONLY) --output $@

NEEDS = $(STATE)/%.set $(INPUTS) $(READY) $(PREPARED)
$(EXECUTED): $(OUT)/%.ipynb: notebooks/%.ipynb $(NEEDS) | $(OUT)
	@echo "Executing $*"; $(EXECUTE)

$(EXECUTED_TOOLS): $(OUT)/tools/%.ipynb: notebooks/tools/%.ipynb $(NEEDS) | $(OUT)/tools
	@echo "Executing $*"; $(EXECUTE)

# The front page reads the tables that all the others write.
$(filter %/00_overview.ipynb,$(EXECUTED)): $(filter-out %/00_overview.ipynb,$(USUAL))
$(filter %/00_overview.ipynb,$(EXECUTED)): $(wildcard $(OUT)/verify.json $(OUT)/coverage.csv)

$(OUT)/index.html: $(CHOSEN) $(wildcard helpers/reporting/site.py) | $(READY)
	@$(PY) -m helpers.reporting.site $(PROFILE)

$(OUT) $(OUT)/tools $(STATE):
	@mkdir -p $@

# -- commands -----------------------------------------------------------------------------------------

.PHONY: FORCE help reproduce report test lab freeze record verify plan why smoke probe model endpoint bench coverage
.PHONY: lock clean

FORCE:

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Profiles (PROFILE=): $(PROFILES). Notebooks (NB=): $(strip $(REPORTS) $(TOOLS))."
	@echo 'Other parameters: SET="DRAWS=2000 SEED=7". One notebook: make reproduce NB=01_global_replay'

GOAL := $(if $(filter $(NB),$(TOOLS)),$(OUT)/tools/$(NB).ipynb,$(OUT)/index.html)
reproduce: $(GOAL) ## execute what is out of date and write the report (PROFILE, NB, SET; PUBMEDQA, N)
	@echo "The report is up to date: $<"

report: $(READY) ## write the HTML pages from the notebooks that are executed already (PROFILE)
	@$(PY) -m helpers.reporting.site $(PROFILE)

REPORT := $(wildcard $(REPORTS:%=outputs/embedded/%.ipynb))
test: $(READY) ## unit tests, then the committed report again, cell by cell (ARGS)
	$(PY) -m pytest -q -n 2 --dist loadfile $(ARGS)
ifneq ($(REPORT),)
	TQDM_DISABLE=1 $(PY) -m pytest -q -n 2 --dist loadfile --nbval --nbval-current-env --nbval-cell-timeout 120 \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg $(REPORT)
else
	@echo "outputs/embedded holds no executed notebook: nothing to check with nbval."
endif

lab: $(READY) ## open the notebooks in JupyterLab
	@$(PY) -m jupyter lab $(ARGS)

freeze: $(READY) $(PREPARED) | $(OUT)/tools ## run the actor on tasks that have no frozen trajectory yet (PROFILE, SET)
	@$(PY) -m helpers.reporting.execute $(PROFILE) freeze_traces --set "$$SET" --only --output $(OUT)/tools/freeze_traces.ipynb

plan: $(READY) $(PREPARED) ## calls, tokens, money and time before anything is asked (PROFILE, N)
	@$(PY) -m helpers.asking.record plan --profile $(PROFILE) $(N:%=--first %) $(ARGS)

record: $(READY) $(PREPARED) ## ask the evaluators for what is not recorded; stop and go on at any time (PROFILE, N)
	@$(PY) -m helpers.asking.record run --profile $(PROFILE) $(N:%=--first %) $(ARGS)

why: $(READY) $(PREPARED) ## why cells are not found: ARGS="--section components --trajectory traj-risk-03 --state 4" (PROFILE)
	@$(PY) -m helpers.asking.why_command why --profile $(PROFILE) $(ARGS)

verify: $(READY) ## ask a sample of the recorded questions again and compare (PROFILE, N)
	@$(PY) -m helpers.asking.record verify --profile $(PROFILE) $(N:%=--count %) $(ARGS)

smoke: $(READY) ## the whole report in seconds on simulated data, against a loopback endpoint
	@$(MAKE) --no-print-directory PROFILE=smoke $(PREPARED_smoke) && \
	ASV_SMOKE_KEY=$$($(PY) -c 'import secrets; print(secrets.token_hex(16))') && export ASV_SMOKE_KEY && \
	{ $(PY) -m tests.rehearsal.endpoint --port 8808 --latency-ms 0 --answers outputs/smoke/data/answers.jsonl & server=$$!; \
	  trap 'kill $$server 2>/dev/null' EXIT; sleep 2; kill -0 $$server && $(MAKE) --no-print-directory PROFILE=smoke reproduce; }

probe: $(READY) ## one to three calls that show what an evaluator's endpoint can do (STACK)
	@$(PY) -m helpers.asking.probe $(STACK) $(ARGS)

model: $(READY) ## fetch and verify the model file of an embedded evaluator (STACK)
	@$(PY) -m helpers.asking.embedded fetch $(STACK)

endpoint: $(READY) ## a loopback endpoint that misbehaves on demand, to rehearse a run for nothing (ARGS)
	@$(PY) -m tests.rehearsal.endpoint $(ARGS)

bench: $(READY) ## speed of acquisition and reduction, as ratios within one run (ARGS)
	@$(PY) -m tests.benchmarks $(ARGS)

coverage: $(READY) ## how often the 95% intervals hold the truth, by simulation; takes a while (ARGS)
	@$(PY) -m tests.coverage --folder $(OUT) $(ARGS)

lock: ## renew requirements.lock from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --extra local --extra dev --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

clean: ## remove .venv, caches, failed notebooks and the smoke profile; recordings and reports stay
	@rm -rf .venv .work .pytest_cache .hypothesis outputs/smoke *.egg-info
	@find $(wildcard helpers tests) -name __pycache__ -prune -exec rm -rf {} +
	@rm -f outputs/*/*.partial.ipynb outputs/*/*.failed.ipynb outputs/*/tools/*.failed.ipynb
