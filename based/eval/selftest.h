// Every operator and path on this very machine against its double-precision reference: what `based selftest` prints.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "based/ops/torch.h"

namespace based {

struct SelfTestResult {
  std::string name;     // operator or path
  std::string variant;  // instruction set and type
  double error = 0;     // largest difference over the largest entry of the reference
  double tolerance = 0;
  bool pass = false;
  std::string message;  // why it could not run, where it threw
};

// Calls `report` after each check. References run on the CPU, what is checked on `device`.
std::vector<SelfTestResult> run_selftest(torch::Device device, const std::function<void(const SelfTestResult&)>& report);

}  // namespace based
