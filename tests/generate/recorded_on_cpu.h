// Steps that are "recorded" on the CPU, for tests of engines that step all slots.
#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "based/runtime/replay.h"

namespace based {

// While an object exists, steps can be recorded on the CPU, too: a replay calls `before` and then the step of all slots again.
class RecordedOnCpu {
 public:
  explicit RecordedOnCpu(std::function<void()> before = [] {}) {
    before_ = std::move(before);
    runtime::recorder_of(torch::kCPU) = [](torch::Device, const std::function<void()>& body,
                                           const runtime::RecordOptions&) -> std::unique_ptr<runtime::Replay> {
      return std::make_unique<Again>(body);
    };
  }
  RecordedOnCpu(const RecordedOnCpu&) = delete;
  RecordedOnCpu& operator=(const RecordedOnCpu&) = delete;
  ~RecordedOnCpu() { runtime::recorder_of(torch::kCPU) = nullptr; }

 private:
  struct Again final : runtime::Replay {
    explicit Again(std::function<void()> step) : body(std::move(step)) {}
    void run() override { before_(), body(); }
    std::function<void()> body;
  };
  static inline std::function<void()> before_;
};

}  // namespace based
