# make demo   a virtual environment, the package, and the demonstration
# make test   the same, and the tests
# make check  format, lint and types
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: install demo test check format bench lock clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet -e ".[dev]"
	touch $@

demo: install
	$(BIN)/coresift demo

test: install
	$(BIN)/python -m pytest -n auto

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

# Write the pins anew from what is installed now.
lock: install
	$(BIN)/pip freeze --exclude-editable | sed 's/+cpu//' | sort -f > constraints.txt

clean:
	rm -rf $(VENV) coresift-demo
