#!/bin/sh
# What make gives the programs that it starts: threads that wait let go of their core among the tests, and nowhere else.
set -eu
policy() { env -u OMP_WAIT_POLICY -u MAKEFLAGS make -s --eval "show: ; @echo \"\$\$OMP_WAIT_POLICY\"" show; }
[ "$(policy)" = "" ] || { echo "make sets OMP_WAIT_POLICY=$(policy) for every target" >&2; exit 1; }
grep -q '^test: export OMP_WAIT_POLICY ?= passive$' Makefile || { echo "make test does not set OMP_WAIT_POLICY" >&2; exit 1; }

# One mixer's tests: a name that is none is answered with those that are.
for name in "" tailor_attention; do
  if answer=$(env -u MAKEFLAGS make -s check MIXER=$name 2>&1); then echo "make check MIXER=$name ended well" >&2; exit 1; fi
  case $answer in
    *" name is one of taylor_attention "*) ;;
    *) echo "make check MIXER=$name says: $answer" >&2; exit 1 ;;
  esac
done
env -u MAKEFLAGS make -n check MIXER=base_conv | grep -qF "Registry/*/base_conv*" || { echo "make check runs no tests" >&2; exit 1; }
