#!/bin/sh
# pkgconfig.sh ROOT: builds programs by the pkg-config files of ROOT/prefix and runs them: the kernels' program of ROOT/kernels, and the
# consumer of ROOT/project, whose object in ROOT/build is linked again. Compiling it again would take most of the test's time, so the headers
# are only read.
set -eu
root=$1
export PKG_CONFIG_PATH="$root/prefix/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
cxx="c++ -std=c++20 -Wl,-rpath,$root/prefix/lib"

$cxx -Wl,--as-needed -DBY_table "$root/kernels/scan.cpp" -o "$root/scan_pkgconfig" $(pkg-config --cflags --libs based-kernels)
"$root/scan_pkgconfig"

$cxx -E "$root/project/consumer.cpp" -o /dev/null $(pkg-config --cflags based)
$cxx "$root/build/CMakeFiles/consumer.dir/Unity/unity_0_cxx.cxx.o" -o "$root/consumer_pkgconfig" $(pkg-config --libs based)
"$root/consumer_pkgconfig"
