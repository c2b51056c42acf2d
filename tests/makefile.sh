#!/bin/sh
# What `make` gives the programs that it starts: threads that wait let go of their core among the tests, and nowhere else.
set -eu
policy() { env -u OMP_WAIT_POLICY -u MAKEFLAGS make -s --eval "show: ; @echo \"\$\$OMP_WAIT_POLICY\"" show; }
[ "$(policy)" = "" ] || { echo "make sets OMP_WAIT_POLICY=$(policy) for every target" >&2; exit 1; }
grep -q '^test: export OMP_WAIT_POLICY ?= passive$' Makefile || { echo "make test does not set OMP_WAIT_POLICY" >&2; exit 1; }
