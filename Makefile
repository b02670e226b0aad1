# make demo | test | lint | bench | interop | full | tiny      every target installs what it needs
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
EXTRAS := export,trt-rtx

.PHONY: demo test lint format bench interop full tiny clean

demo: .venv/.demo
	$(BIN)/svtool demo

test: .venv/.dev
	$(BIN)/pytest

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev
	$(BIN)/pip install --quiet kaldi-native-fbank asrfront
	$(BIN)/python benchmarks/frontend.py

interop: .venv/.dev
	$(BIN)/python tools/interop/run.py

full: .venv/.dev
	$(BIN)/python tools/full/run.py

tiny: .venv/.dev
	$(BIN)/python tools/tiny/train.py
	$(BIN)/python tools/tiny/evaluate.py

clean:
	rm -rf .venv .venv-interop engines/*/

.venv/.torch:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet '$(TORCH)'
	touch $@

.venv/.demo: .venv/.torch pyproject.toml
	$(BIN)/pip install --quiet -e '.[$(EXTRAS)]'
	touch $@

.venv/.dev: .venv/.demo
	$(BIN)/pip install --quiet -e '.[$(EXTRAS),serve,hub,wer,dev]'
	touch $@
