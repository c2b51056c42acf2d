#include "theory/base_conv.h"

#include <bit>

#include "theory/integers.h"

namespace based::theory {

int64_t ceil_log2(int64_t value) {
  BASED_ASSERT(value >= 1);
  return std::bit_width(static_cast<uint64_t>(value - 1));
}

int64_t bit_of(int64_t value, int64_t bit) { return value >> bit & 1; }

int64_t Layer::reach_down() const {
  int64_t reach = 0;
  for (const Tap& tap : filter) reach = std::max(reach, tap.offset + tap.length - 1);
  return reach;
}

int64_t Layer::reach_up() const {
  int64_t reach = 0;
  for (const Tap& tap : filter) reach = std::max(reach, -tap.offset);
  return reach;
}

int64_t parameters_of(const Layer& layer, Size inner) {
  auto count = static_cast<int64_t>(layer.weight.size());
  for (const auto* bias : {&layer.gate_bias, &layer.filter_bias})
    for (const Patch& patch : *bias)
      count += std::min(patch.rows, inner.rows - patch.row) * std::min(patch.columns, inner.columns - patch.column);
  for (const Tap& tap : layer.filter) count += tap.length * std::min(tap.columns, inner.columns - tap.column);
  return count;
}

int64_t Program::parameters() const {
  int64_t count = 0;
  for (const Layer& layer : layers) count += parameters_of(layer, inner);
  return count;
}

int64_t Program::all_parameters() const { return depth() * (inner.columns * inner.columns + 3 * inner.rows * inner.columns); }

std::string Program::tuple() const {
  std::string text = "(";
  for (const int64_t number : {outer.rows, depth(), outer.columns, inner.rows}) text += std::to_string(number) + ", ";
  return text + std::to_string(inner.columns) + ")";
}

void Program::append(std::vector<Layer> more) {
  for (Layer& layer : more) layers.push_back(std::move(layer));
}

IntMatrix run(const Program& program, const IntMatrix& input) {
  Integers arithmetic;
  return run<Integers>(program, input, arithmetic);
}

}  // namespace based::theory
