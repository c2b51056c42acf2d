// The memory that the calls of a step read and write, and questions about all calls together.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "based/decode/step_kernel.h"

namespace based::decode {

// A call with an effect on the device. Units are in the order of the step.
struct Unit {
  std::string op;
  Spans reads, writes;
  std::unique_ptr<StepKernel> kernel;  // null: the recorded launches stay,
  std::string why;                     // for this reason
  std::vector<void*> nodes;            // nodes of the recording; empty where nothing is recorded
};

class Effects {
 public:
  // `is_external`: whether the memory existed before the step.
  Effects(const std::vector<Unit>& units, std::function<bool(const Span&)> is_external)
      : units_(units), is_external_(std::move(is_external)) {}

  // Whether the memory existed before the step and nothing in it writes it, as for weights and numbers of slots. True for absent memory
  // too.
  bool is_constant(const Span& span) const {
    if (span.storage < 0) return true;
    return is_external_(span) && std::none_of(units_.begin(), units_.end(), [&](const Unit& unit) { return overlap(span, unit.writes); });
  }
  // Whether the memory existed before the step and only this unit reads or writes it: a layer's state.
  bool is_private(const Span& span, size_t unit) const {
    if (!is_external_(span)) return false;
    for (size_t i = 0; i < units_.size(); ++i)
      if (i != unit && (overlap(span, units_[i].reads) || overlap(span, units_[i].writes))) return false;
    return true;
  }
  // Whether unit `first` or a later one reads the memory, or it outlives the step.
  bool is_wanted(const Span& span, size_t first) const {
    if (is_external_(span)) return true;
    return std::any_of(units_.begin() + static_cast<std::ptrdiff_t>(first), units_.end(),
                       [&](const Unit& unit) { return overlap(span, unit.reads); });
  }
  // Whether only this unit reads the memory, and it does not outlive the step.
  bool is_only_for(size_t reader, const Span& span) const {
    if (is_external_(span)) return false;
    for (size_t i = 0; i < units_.size(); ++i)
      if (i != reader && overlap(span, units_[i].reads)) return false;
    return true;
  }

 private:
  const std::vector<Unit>& units_;
  std::function<bool(const Span&)> is_external_;
};

}  // namespace based::decode
