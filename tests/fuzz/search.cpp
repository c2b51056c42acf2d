// libFuzzer's entry.
#include <cstdint>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  based::fuzz_one(std::as_bytes(std::span(data, size)));
  return 0;
}
