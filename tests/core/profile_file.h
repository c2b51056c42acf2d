// A profile as a test reads it.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "based/core/files.h"
#include "based/core/json.h"

namespace based {

class ProfileFile {
 public:
  explicit ProfileFile(const std::string& path) : json_(parse_json(read_file(path), path)) {}

  const Json& json() const { return json_; }
  // The events of a phase of the format, in the order of the file: X for ranges, b and e for spans, M for metadata.
  std::vector<Json> events(const std::string& phase = "X") const {
    std::vector<Json> found;
    for (const Json& event : json_.at("traceEvents"))
      if (event.at("ph") == phase) found.push_back(event);
    return found;
  }
  std::vector<std::string> names(const std::string& phase = "X") const {
    std::vector<std::string> found;
    for (const Json& event : events(phase)) found.push_back(event.at("name"));
    return found;
  }
  std::set<std::string> different_names(const std::string& phase = "X") const {
    const std::vector<std::string> all = names(phase);
    return {all.begin(), all.end()};
  }
  // Each range with those around it on its thread: "step/layers.0/mlp". The test fails if two ranges of a thread overlap in part.
  std::vector<std::string> paths() const {
    constexpr double kRounding = 2e-3;                                    // microseconds; times are rounded to nanoseconds
    std::map<int64_t, std::vector<std::pair<double, std::string>>> open;  // by thread: ends and paths
    std::vector<std::string> found;
    for (const Json& event : events()) {
      auto& stack = open[event.at("tid").get<int64_t>()];
      const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
      while (!stack.empty() && stack.back().first <= begin + kRounding) stack.pop_back();
      const double most = stack.empty() ? end : stack.back().first + kRounding;
      EXPECT_LE(end, most) << event << " is not inside " << stack.back().second;
      const std::string path = (stack.empty() ? "" : stack.back().second + "/") + event.at("name").get<std::string>();
      stack.emplace_back(end, path);
      found.push_back(path);
    }
    return found;
  }

 private:
  Json json_;
};

}  // namespace based
