# make demo    a trained checkpoint becomes ONNX graphs, three TensorRT engines and text
# make test    lint, then every test; sets itself up from nothing but Python 3.11 and pip
# make lint    ruff and mypy
# make gpu-test  the tests that need a CUDA device
# make gpu-check  every kernel on this GPU: right, and how fast; PYTHON is one with PyTorch and Triton

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
QUATRAIN := $(BIN)/quatrain
DEMO_PROMPT := "The with statement"
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint gpu-test gpu-check clean

demo: $(VENV)/demo-stamp
	$(QUATRAIN) export samples/checkpoints/topics-nvium --output build/demo-bundle --overwrite \
	  --target a100 a6000 rtx3090
	$(QUATRAIN) inspect build/demo-bundle
	$(QUATRAIN) generate build/demo-bundle --prompt $(DEMO_PROMPT) --seed 0 --stats
	@echo; echo "The same model without exits, trained alike:"
	$(QUATRAIN) export samples/checkpoints/topics-dense --output build/demo-dense --overwrite
	$(QUATRAIN) generate build/demo-dense --prompt $(DEMO_PROMPT) --seed 0 --stats
	@echo; echo "How well each predicts text that neither has seen:"
	$(QUATRAIN) perplexity build/demo-bundle --text samples/checkpoints/heldout.txt
	$(QUATRAIN) perplexity build/demo-dense --text samples/checkpoints/heldout.txt

# In the order of their names, files with engines come early and none is left to wait for at the end.
test: lint
	$(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder --durations=10

lint: $(VENV)/dev-stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

gpu-test: $(VENV)/dev-stamp
	$(BIN)/python -m pytest -q -m gpu

gpu-check:
	PYTHONPATH=src $(PYTHON) -m benchmarks.gpu_check --json build/gpu-check.json

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps are newer than what they install from, and older as soon as that changes.
$(VENV)/demo-stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[export,kernels,rtx]'
	touch $@

$(VENV)/dev-stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf build dist $(VENV)
