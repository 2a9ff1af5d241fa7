# `make demo` and `make test` set everything up by themselves, in .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
READY := .venv/ready
LIBRARY := src/snip/engine/_kernels.so
NODE := src/snip/engine/_node.so
# What does not need each other is set up and checked at the same time.
MAKEFLAGS += --jobs=3
# Tests start hundreds of processes: without files of bytecode each compiles all of Snip again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check docs readme wheel fuzz lint types setup browser bench clean

demo: $(INSTALLED) $(LIBRARY)
	$(BIN)/snip demo

test: lint check

PYTEST ?= -n auto
# The tests alone, for other versions of libraries than those that lint and types are held to.
check: browser $(LIBRARY) $(NODE) | $(READY)
	$(BIN)/python -m pytest $(PYTEST)

# The site, in build/site. Warnings are errors, and the notebooks run while it is built.
docs: $(READY) $(LIBRARY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Measure what the README says, on a quiet machine (half an hour), and write its numbers.
readme: $(READY) $(LIBRARY) $(NODE)
	$(BIN)/python tools/readme.py --measure

# A wheel for this platform, in dist, which needs no compiler where it is installed. Without the
# library it would install and run dense, so that is a failure here.
wheel: $(READY) $(LIBRARY)
	rm -rf build/lib* build/bdist* dist
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .
	$(BIN)/python -m zipfile -l dist/*.whl | grep -q snip/engine/_kernels.so

# New examples for the property tests, random networks, files and kills: make fuzz SECONDS=600
SECONDS ?= 60
fuzz: $(READY) $(LIBRARY) $(NODE)
	$(BIN)/python tests/fuzz.py $(SECONDS)

lint: types $(READY)
	$(BIN)/ruff check src tests bench tools docs
	$(BIN)/ruff format --check src tests bench tools docs/site docs/notebooks
	$(BIN)/python tools/tree.py --check
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror src/snip/engine/native/*pp src/snip/engine/native/torch/*pp

types: $(READY)
	$(BIN)/mypy

bench: $(READY) $(LIBRARY) $(NODE)
	$(BIN)/python bench/topk.py
	$(BIN)/python bench/hold.py
	$(BIN)/python bench/prune.py
	$(BIN)/python bench/scaling.py
	$(BIN)/python bench/sizes.py
	$(BIN)/python bench/train.py
	$(BIN)/python bench/inference.py

setup: $(READY) browser

# The report page is tested in a real browser. Where it is missing and cannot be installed these
# tests are skipped with a sentence, but fail where CI=true.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
			chromium fonts-dejavu-core; \
	fi || echo "chromium could not be installed: tests of the page in a browser are skipped"

# torch first and by its exact version: a looser request pulls gigabytes of CUDA. Bytecode is
# written when a module is first used: most of these never are.
$(INSTALLED): pyproject.toml constraints.txt $(wildcard setup.py)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e .
	touch $(INSTALLED)

# The demo does without all this. The package is there already: pip adds what the extra asks for.
$(READY): $(INSTALLED)
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt 'snip-prune[dev]'
	touch $(READY)

# A library that was built from other sources than those beside it is refused, so it is built anew.
# pip builds it as well, but where it cannot be built only this says so.
$(LIBRARY): $(wildcard src/snip/engine/native/*pp src/snip/engine/build.py) | $(INSTALLED)
	$(BIN)/python -m snip.engine.build --kernels

# Takes as long as all else that the demo needs, and is for the torch that is installed. Where it
# cannot be built there is no such file, and it is tried again.
$(NODE): $(LIBRARY) $(INSTALLED) $(wildcard src/snip/engine/native/torch/*pp)
	$(BIN)/python -m snip.engine.build

clean:
	rm -rf .venv build dist src/*.egg-info $(LIBRARY) $(NODE)
