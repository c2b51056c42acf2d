// The files of a training run without timings. They are equal for equal runs.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "based/core/files.h"

namespace based {

inline std::map<std::string, std::string> results_of(const std::string& out) {
  namespace fs = std::filesystem;
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(out)) {
    const std::string name = fs::relative(entry.path(), out).string();
    if (entry.is_regular_file() && !name.starts_with("tensorboard") && name != "timing.jsonl") files[name] = read_file(entry.path());
  }
  return files;
}

// Compares byte for byte; a failure message names the file, not its contents.
inline void expect_equal_results(const std::string& one, const std::string& other) {
  const auto a = results_of(one), b = results_of(other);
  for (const auto& [name, content] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(b.at(name) == content) << name << " differs";
  }
  EXPECT_EQ(a.size(), b.size());
}

}  // namespace based
