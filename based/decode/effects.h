// What the calls of a step do to memory, all of them together.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "based/decode/step_kernel.h"

namespace based::decode {

// A call that does something on the device, in the order of the step.
struct Unit {
  std::string op;
  Spans reads, writes;
  std::unique_ptr<StepKernel> kernel;  // null: it runs as it is,
  std::string why;                     // for this reason
  std::vector<void*> nodes;            // of the recording; none where nothing is recorded
};

class Effects {
 public:
  // `is_external`: whether a place was there before the step.
  Effects(const std::vector<Unit>& units, std::function<bool(const Span&)> is_external)
      : units_(units), is_external_(std::move(is_external)) {}

  // There before the step, and written by nothing in it: weights, numbers of slots. So is what is not there at all.
  bool is_constant(const Span& span) const {
    if (span.storage < 0) return true;
    return is_external_(span) && std::none_of(units_.begin(), units_.end(), [&](const Unit& unit) { return overlap(span, unit.writes); });
  }
  // There before the step, and touched by this unit alone: a layer's state.
  bool is_private(const Span& span, size_t unit) const {
    if (!is_external_(span)) return false;
    for (size_t i = 0; i < units_.size(); ++i)
      if (i != unit && (overlap(span, units_[i].reads) || overlap(span, units_[i].writes))) return false;
    return true;
  }
  // Whether a unit from `first` on reads it, or it outlives the step.
  bool is_wanted(const Span& span, size_t first) const {
    if (is_external_(span)) return true;
    return std::any_of(units_.begin() + static_cast<std::ptrdiff_t>(first), units_.end(),
                       [&](const Unit& unit) { return overlap(span, unit.reads); });
  }
  // Whether this unit alone reads it, and it does not outlive the step.
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
