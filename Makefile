# `make help` lists the commands. PRESET=dev, for example, selects another preset of CMakePresets.json.
PRESET ?= release
JOBS ?= $(shell n=$$(nproc); echo $$(( n < 3 ? n : 3 )))
BUILD = build/$(PRESET)
export CMAKE_BUILD_PARALLEL_LEVEL = $(JOBS)
export CTEST_PARALLEL_LEVEL = $(JOBS)

.PHONY: build help setup test test-serving test-page test-tutorial wheel test-wheel check demo format format-check lint fuzz install deb docs clean
build: setup $(BUILD)/build.ninja ## set up and build the program (the default)
	cmake --build $(BUILD) --target based

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: ## install what is missing: Debian packages, and LibTorch into .venv
	@tools/setup build $(filter cuda,$(PRESET))

$(BUILD)/build.ninja: CMakePresets.json
	cmake --preset $(PRESET)

# Test programs run concurrently, so idle OpenMP threads must sleep instead of spinning on cores that other programs need. A program that
# runs alone is up to nine times slower with this setting.
test: export OMP_WAIT_POLICY ?= passive
test: setup-all $(BUILD)/build.ninja ## build and run every test, including the format check and the sanitizer build
	cmake --build $(BUILD)
	ctest --test-dir $(BUILD) --output-on-failure

MIXERS = $(shell sed -n 's/^BASED_MIXER(\(.*\))$$/\1/p' based/mixers/mixers.def)
check: $(if $(filter $(MIXERS),$(MIXER)),setup $(BUILD)/build.ninja) ## build and run the tests that one mixer must pass: make check MIXER=name
ifeq ($(filter $(MIXERS),$(MIXER)),)
	@echo "make check MIXER=name: $(if $(MIXER),there is no mixer '$(MIXER)'; )name is one of $(MIXERS)" >&2; exit 2
else
	cmake --build $(BUILD) --target mixers_tests
	@filter='Registry/*/$(MIXER)*'; \
	nvidia-smi -L >/dev/null 2>&1 || { filter="$$filter:-*_cuda"; echo "no GPU: testing on the CPU only"; }; \
	$(BUILD)/bin/mixers_tests --gtest_brief=1 --gtest_filter="$$filter"
endif

test-serving: build ## run lm-eval and OpenAI's client from PyPI against a server; not part of `make test`
	@tools/test-serving

test-page: build ## use the server's page in a headless Chromium (apt-get install chromium chromium-driver); needs the network, not part of `make test`
	@tools/test-page

wheel: $(if $(filter ON,$(WITH_ENGINE)),setup $(BUILD)/build.ninja) ## build the Python package into dist/; WITH_CUDA=OFF omits the CUDA kernels, WITH_ENGINE=ON adds the engine
	@tools/setup build wheel
ifeq ($(WITH_ENGINE),ON)
	cmake --build $(BUILD) --target based_shared
endif
	@WITH_CUDA=$(WITH_CUDA) ENGINE=$(if $(filter ON,$(WITH_ENGINE)),$(BUILD)/lib) tools/wheel

test-wheel: ## install the wheel beside several versions of torch and test it; needs the network, not part of `make test`
	@tools/test-wheel

test-tutorial: build ## run the commands of docs/tutorial with small sizes; not part of `make test`
	@python3 tests/tutorial.py $(BUILD)/bin/based build/tutorial

demo: setup-demo build ## train, generate and draw the memory-recall picture, in under five minutes; results in out/demo
	@tools/demo

format: ## rewrite all sources with clang-format
	@tools/setup check
	@tools/format

format-check: ## list the sources that clang-format would change
	@tools/setup check
	@tools/format --check

lint: setup-all $(BUILD)/build.ninja ## run clang-tidy over all sources; `make test` runs the quick part
	@tools/lint $(BUILD)

fuzz: ## run every fuzz target for FUZZ_SECONDS (30) under ASan and UBSan
	@tools/setup build fuzz
	@tools/fuzz

install: setup $(BUILD)/build.ninja ## install the program, the library and its CMake package below PREFIX (/usr/local)
	cmake --build $(BUILD) --target based based_shared
	cmake --install $(BUILD) --prefix $(or $(PREFIX),/usr/local)

deb: setup $(BUILD)/build.ninja ## build dist/based_VERSION_amd64.deb for Debian 12, without LibTorch: docs/packages.md
	cmake --build $(BUILD) --target based based_shared based_launcher
	cd $(BUILD) && cpack -G DEB -B package
	mkdir -p dist && cp $(BUILD)/package/*.deb dist/

docs: ## build the documentation site build/docs/html from docs/, README and the headers
	@tools/setup docs
	@tools/docs

clean: ## remove the build folder; .venv and out are kept
	rm -rf build

.PHONY: setup-all setup-demo
setup-all:
	@tools/setup build check $(filter cuda,$(PRESET))
setup-demo:
	@tools/setup build demo
