# `make demo` and `make test` work on a bare clone: they make a virtual environment and install what they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check format clean

demo: $(VENV)/.installed
	$(BIN)/vje demo

# One thread a process: the tests already use every core. They start many processes, which share compiled modules.
test: $(VENV)/.developing
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

check: $(VENV)/.developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.developing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "vje needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ..."; exit 1; }
	@df -Pk . | awk 'NR == 2 && $$4 < 7e6 { \
		printf "Only %.1f GB are free here, and PyTorch with its GPU libraries takes about 6.\n", $$4 / 1e6 }'
	$(PYTHON) -m venv $(VENV)
	touch $@

# Without compiling every module of PyTorch beforehand, which takes longer than those that are used do when they are.
$(VENV)/.installed: pyproject.toml | $(VENV)/.created
	@echo "Installing vje and PyTorch (a few minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e .
	touch $@

$(VENV)/.developing: pyproject.toml | $(VENV)/.created
	@echo "Installing vje, PyTorch and the development tools (a few minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	touch $@ $(VENV)/.installed
