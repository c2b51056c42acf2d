// The places of expected outputs and data sets that are not part of the repository. Tests that need them are skipped if they are missing.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace based::test {

// $BASED_GOLDENS, or ../shared/goldens beside the repository.
inline std::string golden(const std::string& name) {
  const char* set = std::getenv("BASED_GOLDENS");
  return (set ? std::string(set) : std::string(BASED_SOURCE_DIR) + "/../shared/goldens") + "/" + name;
}

// $BASED_DATA, or ~/.cache/based/data.
inline std::string data_set(const std::string& name) {
  const char* set = std::getenv("BASED_DATA");
  const char* home = std::getenv("HOME");
  return (set ? std::string(set) : std::string(home ? home : "") + "/.cache/based/data") + "/" + name;
}

}  // namespace based::test

#define BASED_NEEDS_FILE(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "needs " << (path)
