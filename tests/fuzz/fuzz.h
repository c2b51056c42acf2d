// Shared by the fuzz targets. A target defines fuzz_one. Built with libFuzzer it searches for failures, otherwise it replays its corpus.
#pragma once
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "based/core/error.h"

namespace based {

void fuzz_one(std::span<const std::byte> input);

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return bytes.empty() ? std::string_view() : std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

inline void require(bool condition, const char* law) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", law);
  std::abort();
}

// Invalid input may only be refused with an Error.
template <class Body>
void accept_or_refuse(Body&& body) {
  try {
    body();
  } catch (const Error&) {}
}

}  // namespace based
