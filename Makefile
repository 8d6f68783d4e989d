# make        the program: build/weft
# make demo   GRPO on the shipped model; a report at the end
# make test   build and pass all tests (some 4 minutes on two cores once built)
BUILD ?= build
CMAKE_FLAGS ?=
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local

.PHONY: all deps configure build tests test test-all demo install bench format clean
all: build

deps:
	@tools/deps.sh

configure: deps
	@test -f $(BUILD)/build.ninja || cmake -S . -B $(BUILD) -G Ninja $(CMAKE_FLAGS)

build: configure
	cmake --build $(BUILD) -j $(JOBS) --target weft

# The program and all test programs, which take as long again.
tests: configure
	cmake --build $(BUILD) -j $(JOBS)

# One more at a time than there are cores: tests of jobs that hang and stop wait more than they compute.
test: tests
	ctest --test-dir $(BUILD) --output-on-failure -j $$(($(JOBS) + 1)) -LE slow

test-all: tests
	cmake --build $(BUILD) -j $(JOBS) --target slow_tests
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

demo: build
	tools/demo.sh $(BUILD)/weft

install: build
	cmake --install $(BUILD) --prefix $(PREFIX)

bench: build
	cmake --build $(BUILD) -j $(JOBS) --target weft_bench_all

format:
	clang-format -i $$(git ls-files '*.h' '*.cc')

clean:
	rm -rf $(BUILD)
