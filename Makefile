# Every target sets up what it needs in .venv; a machine needs Python 3.11 or later with venv, git and make.

PYTHON ?= $(shell for name in python3.11 python3 python; do \
	"$$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)
BIN := .venv/bin
# The same versions for what is installed and for what builds it.
INSTALL = PIP_CONSTRAINT=constraints-dev.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet
ARGS ?=

.PHONY: help demo test check bench nightly format clean

help:
	@echo "make demo     refunds, and all that can go wrong with them; then the books are compared"
	@echo "make test     the tests (ARGS='-k name' is handed to pytest)"
	@echo "make check    format, lint, types"
	@echo "make bench    speed beside the bare commit path, as one table"
	@echo "make nightly  the tests that take minutes"
	@echo "make format   put the code into its format, and the guides up to date with it"
	@echo "make clean    remove .venv and what the tools leave"

demo: .venv/demo.installed
	$(BIN)/python -m examples.refund_order $(ARGS)

test: .venv/dev.installed
	$(BIN)/python -m tests.project.run_tests $(ARGS)

check: .venv/dev.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tests.project.check_types
	$(BIN)/mypy

bench: .venv/dev.installed
	$(BIN)/python -m benchmarks $(ARGS)

nightly: .venv/dev.installed
	@failed=; \
	$(BIN)/pytest -m nightly $(ARGS) || failed="$$failed nightly"; \
	for way in TOPOLOGY=cluster TOPOLOGY=sentinel FORCE=suspend FORCE=replay; do \
		env KEYLANE_TEST_$$way $(BIN)/python -m tests.project.run_tests $(ARGS) || failed="$$failed $$way"; \
	done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

format: .venv/dev.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m tests.project.generated

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Keylane needs Python 3.11 or later with venv; none was found on the path."; exit 1; }
	"$(PYTHON)" -m venv .venv

.venv/demo.installed: .venv/bin/python pyproject.toml constraints-dev.txt
	$(INSTALL) --editable '.[demo]'
	@touch $@

.venv/dev.installed: .venv/bin/python pyproject.toml constraints-dev.txt
	$(INSTALL) --editable '.[dev,localstripe]'
	@touch $@ .venv/demo.installed
