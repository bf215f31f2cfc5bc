# Motet from a bare machine: Linux x86-64, Python 3.11 or newer, make, git. Everything is installed into .venv.
#   PYTHON=...       the interpreter to make .venv with
#   TORCH_INDEX=...  an extra package index for torch, such as one of builds without CUDA

ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for p in python3.12 python3.11 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; done; echo python3)
endif
export TORCH_INDEX
unexport PYTHONDONTWRITEBYTECODE # many containers set it; without byte code an executor takes twice the time to start

BIN := .venv/bin
INSTALLED := .venv/installed
PACKAGES := contract service worker kernels/grouped_lora client/motet deploy migrations

.PHONY: help install demo up test test-ci test-all test-gpu lint openapi sbom
.DEFAULT_GOAL := help

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

install: $(INSTALLED) ## install into .venv; does nothing when that is done

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "motet: there is no $(PYTHON). Fix: install Python 3.11 or newer" \
		"(Debian, Ubuntu: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) deploy/preflight.py
	@$(PYTHON) deploy/install.py

demo: install ## train a small sweep on this machine and show the best adapter
	@$(BIN)/motet demo

up: install ## the whole of Motet in the foreground, until Ctrl-C
	@$(BIN)/motet up

SIDE_BY_SIDE := --numprocesses logical --dist loadfile --no-loadscope-reorder

test: install ## what two cores do in a quarter of an hour
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not slow and not gpu and not heavy"

test-ci: install ## everything that needs no GPU, short forms
	$(BIN)/pytest $(SIDE_BY_SIDE)

test-all: install ## the long forms too
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not gpu"

test-gpu: install ## what needs a GPU
	$(BIN)/pytest -m gpu

lint: install ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES)

openapi: install ## write openapi.yaml anew
	$(BIN)/python -m service openapi > openapi.yaml.new
	mv openapi.yaml.new openapi.yaml

sbom: install ## a CycloneDX bill of the packages in .venv: build/sbom/motet.cdx.json
	@mkdir -p build/sbom
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file build/sbom/motet.cdx.json $(BIN)/python
