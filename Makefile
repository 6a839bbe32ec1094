# make demo   a virtual environment, the package, and the demonstration
# make test   the same, and the tests
# make test-fast  only the tests of the core, in under two minutes
# make check  format, lint, types and the order of imports
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
LINUX = sys_platform == "linux" and platform_machine == "x86_64"

.PHONY: install demo test test-fast check format bench lock label-studio clean

install: $(VENV)/.installed

# The hash of all that is pinned is checked, the build backend's too; torch comes without CUDA where pip finds
# that build. Not checked is what the last step may add: packages that only other platforms need, such as the
# CUDA libraries of the other build.
$(VENV)/.installed: pyproject.toml constraints.txt hashes.txt hashes-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-deps --require-hashes -r hashes-cpu.txt 2>/dev/null || true
	$(BIN)/pip install --quiet --no-deps --require-hashes -r hashes.txt
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --no-build-isolation -e ".[dev]"
	touch $@

demo: install
	$(BIN)/coresift demo

test: install
	CORESIFT_LABEL_STUDIO=$(wildcard $(CURDIR)/.label-studio/bin/label-studio) $(BIN)/python -m pytest -n auto

# The core: pools, posteriors, spaces, search, scores, selectors and strategies, without clusters and kernels.
CORE = pool posteriors spaces search scores selectors
test-fast: install
	$(BIN)/python -m pytest -n auto $(wildcard $(CORE:%=tests/%) tests/test_*.py) $(CORE:%=src/coresift/%) \
		--ignore=tests/search/test_ray.py --ignore=tests/search/test_cuda.py \
		--ignore=tests/test_readme.py --ignore=tests/test_examples.py --ignore=tests/test_paper.py

# A server for the tests of Label Studio, which are left out without; it wants an environment of its own. Asking
# for a user makes the tables of an empty database, which takes longer than all tests of the server.
label-studio: .label-studio/.installed

.label-studio/.installed:
	$(PYTHON) -m venv .label-studio
	.label-studio/bin/pip install --quiet label-studio==1.23.2
	LABEL_STUDIO_BASE_DATA_DIR=$(CURDIR)/.label-studio/empty COLLECT_ANALYTICS=false LATEST_VERSION_CHECK=false \
		SENTRY_DSN= FRONTEND_SENTRY_DSN= .label-studio/bin/label-studio user --username nobody
	touch $@

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

# Write the pins anew from what is installed now, and the hashes of their files. Triton has wheels for Linux
# only; its version must be the one that torch with CUDA asks for.
lock: install
	$(BIN)/pip freeze --exclude-editable | sed 's/+cpu//; /^\(nvidia-\|cuda-\)/d; /^triton/s/$$/; $(LINUX)/' | sort -f > constraints.txt
	$(BIN)/python .ci/lock.py constraints.txt hashes.txt hashes-cpu.txt

clean:
	rm -rf $(VENV) .label-studio coresift-demo
