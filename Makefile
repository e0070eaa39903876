# make demo | make test | make serve | make lint | make clean
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
# The first interpreter that SGLang's release supports.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && { echo $$p; break; }; done)
# Re-install when the pins change, or when an environment outside this checkout was last used by another one.
KEY := $(shell { cat UPSTREAM pyproject.toml; echo $(CURDIR); } | sha256sum | cut -c1-16)
INSTALLED := $(VENV)/.sglang-cp-$(KEY)

.PHONY: demo test serve lint install clean

demo: install
	$(BIN)/python -m evals.demo

test: lint
	$(BIN)/python -m pytest

serve: install
	PYTHON=$(BIN)/python launch/demo-cpu/serve.sh

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

install: $(INSTALLED)
	@$(BIN)/sglang-cp patch apply

$(INSTALLED):
	@test -n "$(PYTHON)" || { echo "Python 3.10 to 3.12 is needed: install one, or pass PYTHON=/path/to/it." >&2; exit 1; }
	@echo "Installing SGLang with all its pins into $(VENV): about 4 minutes and 11 GB the first time."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@set -o pipefail; $(BIN)/python -m pip install -e '.[sglang,dev]' 2>&1 | tee $(VENV)/install.log \
		| { grep --line-buffered -oE '^( +Downloading [^ ]+ \(.*|Installing collected|Successfully|ERROR.*)' || true; } \
		|| { tail -20 $(VENV)/install.log; exit 1; }
	@rm -f $(VENV)/.sglang-cp-*
	@touch $@

clean:
	rm -rf .venv .work .mypy_cache .ruff_cache .pytest_cache .hypothesis
