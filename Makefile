# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv when it is missing, installs with constraints.txt and runs;
# the install step is repeated only when pyproject.toml or constraints.txt changed.
PYTHON    ?= python3
PIP_FLAGS ?=
PYTEST    ?= -n 2
BIN       := .venv/bin
# One thread for each test process: the tests run in two processes and are compared bit for bit.
TEST_ENV  := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.PHONY: demo test test-slow test-gpu lint benchmark clean

demo: .venv/.installed
	$(BIN)/selectivbench demo --output demo

test: .venv/.installed lint
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST)

test-slow: .venv/.installed
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST) -m slow

test-gpu: .venv/.installed
	$(BIN)/python -m pytest -m gpu

lint: .venv/.installed
	$(BIN)/ruff check .

benchmark: .venv/.installed
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv demo dist build .pytest_cache .ruff_cache .hypothesis
