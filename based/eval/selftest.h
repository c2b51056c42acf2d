// `based selftest`: compares every operator and code path on this machine with its double-precision reference.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "based/runtime/torch.h"

namespace based {

struct SelfTestResult {
  std::string name;     // operator or path
  std::string variant;  // instruction set and type
  double error = 0;     // largest difference divided by the largest entry of the reference
  double tolerance = 0;
  bool pass = false;
  std::string message;  // the exception's message, if it could not run
};

// Calls `report` after each check. References run on the CPU, checked operators on `device`.
std::vector<SelfTestResult> run_selftest(torch::Device device, const std::function<void(const SelfTestResult&)>& report);

}  // namespace based
