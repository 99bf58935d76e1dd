# `make run` needs Python 3.11 or newer and nothing else; `make test` adds the development tools to the same .venv.

PYTHON ?= python3
SCENARIO ?= scenarios/gpt2-medium-4x-h100-pipeline.json
GANTT ?= gpt2-medium.png

VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core-stamp
DEV := $(VENV)/.dev-stamp
SETUP := setup.cfg pyproject.toml constraints.txt $(wildcard requirements/*.txt)
# Byte code is made of what is imported, when it is: most of what is installed never is.
PIP := $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check
# Every file is verified by its hash; the lists hold all that is needed. The clone has none, and is built by what is there.
VERIFIED := $(PIP) --require-hashes --no-deps -r requirements
CLONE := $(PIP) --no-deps --no-build-isolation -e .
# And then it is kept: tests start hundreds of processes, which would compile it again each.
unexport PYTHONDONTWRITEBYTECODE

APT := DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq -y -o Acquire::Retries=1 -o Acquire::http::Timeout=20

.PHONY: help run test slow lint docs kernels browser bench wheel clean distclean

help:
	@echo "make run        simulate $(SCENARIO) and draw $(GANTT)"
	@echo "make test       lint, types and the tests"
	@echo "make slow       the slow tests, and more random examples"
	@echo "make lint       lint and types alone"
	@echo "make docs       the documentation site, build/site/index.html"
	@echo "make bench      the benchmarks"
	@echo "make wheel      dist/simdev-*.whl, with all examples"
	@echo "make clean      remove caches and outputs"
	@echo "make distclean  remove the environment $(VENV) too"

run: $(CORE)
	$(BIN)/simdev simulate $(SCENARIO) --gantt $(GANTT)

# The kernels are compiled while the types are checked, each of which keeps one core busy. Then a
# process a core; a file of tests stays in one, since its tests share what they prepare, and the
# files come in the order of tests/conftest.py.
test: $(DEV)
	@$(MAKE) --no-print-directory -j2 lint kernels
	@$(MAKE) --no-print-directory browser
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Tests of random examples draw all of them here (tests/conftest.py). pytest exits 5 where no test was
# chosen, which is no failure here.
slow: $(DEV)
	$(BIN)/python -m pytest -m "slow or hypothesis" || [ $$? -eq 5 ]

kernels: $(DEV)
	@$(BIN)/python tests/compile_kernels.py

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests open pages in a real browser. Where there is none, Debian's is installed if that may be done here;
# else those tests are skipped, and this line says how to get one.
browser: $(DEV)
	@$(BIN)/python tests/browser/browsers.py >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& echo "installing Debian's chromium for the tests of pages ..." && $(APT) update && $(APT) install \
		--no-install-recommends chromium fonts-dejavu-core; } >&2 || $(BIN)/python tests/browser/browsers.py || true

# A warning is an error; pictures and answers of notebooks are kept until simdev changes. Where there is a
# browser, the pages are looked at in it.
docs: $(DEV)
	$(BIN)/python -m sphinx -c docs -b html -d build/pages -j auto -W --keep-going -q . build/site
	@$(MAKE) --no-print-directory browser
	$(BIN)/python -m pytest -q -m slow tests/browser/test_documentation.py
	@echo "build/site/index.html is ready"

bench: $(DEV)
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.oracle
	$(BIN)/python -m benchmarks.anneal
	$(BIN)/python -m benchmarks.export
	$(BIN)/python -m benchmarks.strategies
	$(BIN)/python -m benchmarks.hybrid
	$(BIN)/python -m benchmarks.placers
	$(BIN)/python -m benchmarks.learners --quick
	$(BIN)/python -m benchmarks.sweeps
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.explore

wheel: $(CORE)
	@rm -rf build
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w dist .

# A stamp records that an environment is complete; it is made anew when a file that decides its content changes.
$(CORE): $(SETUP)
	$(make-venv)
	@echo "setting up $(VENV) to run simdev (takes a minute the first time) ..."
	@rm -f $(CORE) $(DEV)
	@$(VERIFIED)/core.txt
	@$(CLONE)
	@touch $(CORE)
	@echo "$(VENV) is ready"

$(DEV): $(SETUP)
	$(make-venv)
	@echo "setting up $(VENV) with the development tools (takes a few minutes the first time) ..."
	@rm -f $(CORE) $(DEV)
	@$(VERIFIED)/dev.txt
	@$(PIP) -c constraints.txt torch
	@$(CLONE)
	@touch $(CORE) $(DEV)
	@echo "$(VENV) is ready"

define make-venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "simdev needs Python 3.11 or newer, and '$(PYTHON)' is not: try make PYTHON=python3.12 (or another)" >&2; exit 1; }
@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
endef

clean:
	rm -rf build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	rm -rf .coverage htmlcov $(GANTT)
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
