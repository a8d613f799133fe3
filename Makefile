# `make demo` and `make test` are all a fresh Debian 12 machine needs; both can be run again.

PYTHON := .venv/bin/python
SOURCES := src tests tools bench
MOUNTS ?= hidden
SECONDS ?= 240
CPUS := $(shell nproc)
# Tests wait for processes and sockets, those of pods half of their time: more of them at once than CPUs.
SPREAD_UNIT := --numprocesses=$(shell echo $$(($(CPUS) + 1))) --maxprocesses=4 --dist=worksteal
SPREAD := --numprocesses=$(shell echo $$((2 * $(CPUS) + 1))) --maxprocesses=5 --dist=worksteal
# An emulated machine keeps one CPU busy. What the tests of a file need there is made once, as none of them is given away.
SPREAD_NESTED := --numprocesses=$(CPUS) --maxprocesses=2 --dist=loadfile --no-loadscope-reorder
UNIT_TESTS := tests/unit tests/contract
LINTERS := lint-code lint-format lint-types lint-rules lint-spelling
SCRATCH_TESTS := $(SPREAD) tests/integration tests/conformance
RESULTS := .cache/results
OLDER = .venv/bin/python -m pytest -v -rs --numprocesses=2 --dist=worksteal --timeout=3600 -o faulthandler_timeout=3000
# One run for each directory, whose conftest.py others cannot be run with.
OLDER_PARTS := tests/unit/kernel tests/conformance $(wildcard tests/integration/*)
# Recursive, as no other target asks for it.
OLDER_TESTS = $(shell $(PYTHON) tools/requirements.py --tests=U)
SUITE = $(PYTHON) tools/suite.py --results=$(RESULTS)/$@.jsonl

# Tests start thousands of Python programs: each would compile the whole of podkeep again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test parity reference nested older attack quick watch shell trace isolation check proto packages requirements backed bench pins clean $(LINTERS)

help: ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST)

setup: ## install missing packages and .venv, for checks and tests
	@tools/setup test

demo: ## run a pod in its own user namespace, show it from both sides, clean up (root)
	@tools/setup demo
	@$(PYTHON) tools/demo.py

test: ## every check and every test; MOUNTS=shown: without hiding the mounts of containers (root)
	@test "$$(id -u)" = 0 || { \
		echo "make test: the tests run containers and use the kernel as only root may" >&2; \
		echo "hint: sudo make test" >&2; exit 1; }
	@$(MAKE) --no-print-directory check
	$(PYTHON) tools/suite.py --results=$(RESULTS)/slow.jsonl $(SPREAD_UNIT) -mslow $(UNIT_TESTS)
	$(SUITE) $(SCRATCH_TESTS) --container-mounts=$(MOUNTS)

parity: setup ## run the tests with container mounts hidden and shown, and compare result by result (root)
	@mkdir -p .cache/parity
	-$(PYTHON) -m pytest $(SCRATCH_TESTS) --container-mounts=hidden --junit-xml=.cache/parity/hidden.xml
	-$(PYTHON) -m pytest $(SCRATCH_TESTS) --container-mounts=shown --junit-xml=.cache/parity/shown.xml
	$(PYTHON) tools/compare_runs.py .cache/parity/hidden.xml .cache/parity/shown.xml

reference: ## run the conformance tests, a node's among them, against Debian's containerd (root)
	@tools/setup reference
	$(PYTHON) tools/suite.py --results=.cache/reference.jsonl $(SPREAD) tests/conformance --cri-endpoint=containerd

nested: ## tests in an emulated machine with systemd, cgroup v2, AppArmor and Debian's kernel (root)
	@tools/setup nested
	$(SUITE) $(SPREAD_NESTED) tests/nested

older: ## the tests of user namespaces in the emulated machine, on Linux 6.1: an hour and more (root)
	@tools/setup nested
	PYTHONPATH=tests:src $(PYTHON) -m support.nested.machine -- sh -c 'failed=; $(foreach part,$(OLDER_PARTS), \
		$(if $(filter $(part)/%,$(OLDER_TESTS)),$(OLDER) $(filter $(part)/%,$(OLDER_TESTS)) || failed=1;)) test -z "$$failed"'

attack: ## hostile requests, archives and streams against a daemon; SECONDS= or CASES= of each, SEED= or ONLY= to repeat (root)
	@tools/setup test
	PYTHONPATH=tests:src $(PYTHON) -m attack --keep .cache/attack \
		$(if $(CASES),--cases $(CASES),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

isolation: ## print the attacks of the last make test and make nested as docs/isolation.md has them; WRITE=1 writes it
	@PYTHONPATH=tests:src $(PYTHON) -m support.isolation $(if $(WRITE),--write)

quick: ## the unit tests that need no root, in 15 s at most
	@test -x $(PYTHON) || tools/setup test
	$(PYTHON) -m pytest -q $(SPREAD_UNIT) --quick -m "not slow" tests/unit

watch: ## run the tests that belong to what was changed, each time something is saved
	@test -x $(PYTHON) || tools/setup test
	@$(PYTHON) tools/watch.py

shell: ## a shell on a scratch machine with a runtime of its own, removed at exit; RUN= runs a command instead (root)
	@test -x $(PYTHON) || tools/setup test
	@PYTHONPATH=tests:src $(PYTHON) -m support.workbench shell $(if $(RUN),--run "$$RUN")

trace: ## what one request did, step by step, with times: RPC=RunPodSandbox; RUN= makes the request, LEAST= milliseconds (root)
	@test -x $(PYTHON) || tools/setup test
	@PYTHONPATH=tests:src $(PYTHON) -m support.workbench trace $(or $(RPC),RunPodSandbox) \
		$(if $(RUN),--run "$$RUN") $(if $(LEAST),--least $(LEAST))

check: setup ## lint, format, types, import rules, spelling, unit and contract tests but the slow ones (root)
	@$(MAKE) --no-print-directory --jobs --output-sync=target $(LINTERS)
	$(SUITE) $(SPREAD_UNIT) "-mnot slow" $(UNIT_TESTS)

lint-code:
	.venv/bin/ruff check $(SOURCES)

lint-format:
	.venv/bin/ruff format --check $(SOURCES)

lint-types:
	.venv/bin/mypy

lint-rules:
	.venv/bin/lint-imports

lint-spelling:
	.venv/bin/codespell $(SOURCES) docs examples Makefile *.md

proto: setup ## regenerate the gRPC stubs
	$(PYTHON) tools/proto.py

packages: setup ## write the tables of packages in ARCHITECTURE.md
	$(PYTHON) tools/packages.py --write

requirements: setup ## print the table of requirements and the tests that show them
	@$(PYTHON) tools/requirements.py

backed: ## hold that table against the results of make test and make nested
	@$(PYTHON) tools/requirements.py --results $(RESULTS)

bench: ## compare with containerd on this machine (root); PART=pods, forks, pulls, mountns, classes, api, node, userns or nested measures only that
	@tools/setup $(if $(filter nested,$(PART)),nested,bench)
	$(PYTHON) -m bench $(if $(PART),--part $(PART))

pins: setup ## write the versions now in .venv to constraints.txt
	{ sed -n 1p constraints.txt; .venv/bin/pip freeze --all --exclude-editable --exclude pip; } >constraints.new
	mv constraints.new constraints.txt

clean: ## remove .venv and every cache
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
