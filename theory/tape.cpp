#include "theory/tape.h"

#include <algorithm>

#include "based/core/error.h"
#include "theory/integers.h"

namespace based::theory {

Tape::Tape() {
  constant(0);
  constant(1);
}

Tape::Value Tape::add(const Node& node) {
  if (nodes_.size() >= INT32_MAX) throw Error("theory: the program is too large to be traced");
  nodes_.push_back(node);
  return static_cast<Value>(nodes_.size() - 1);
}

Tape::Value Tape::constant(int64_t value) {
  const auto found = constants_.find(value);
  if (found != constants_.end()) return found->second;
  return constants_[value] = add({Kind::constant, 0, 0, value});
}

Tape::Value Tape::input() { return add({Kind::input, inputs_++}); }

Tape::Value Tape::sum(Value a, Value b) {
  if (a == 0) return b;
  if (b == 0) return a;
  const Node &left = nodes_[static_cast<size_t>(a)], &right = nodes_[static_cast<size_t>(b)];
  if (left.kind == Kind::constant && right.kind == Kind::constant) return constant(Integers::sum(left.value, right.value));
  return add({Kind::sum, a, b});
}

Tape::Value Tape::product(Value a, Value b) {
  if (a == 0 || b == 0) return 0;
  if (a == 1) return b;
  if (b == 1) return a;
  const Node &left = nodes_[static_cast<size_t>(a)], &right = nodes_[static_cast<size_t>(b)];
  if (left.kind == Kind::constant && right.kind == Kind::constant) return constant(Integers::product(left.value, right.value));
  return add({Kind::product, a, b});
}

Traced::Traced(const Tape& tape, const std::vector<Tape::Value>& outputs) { build(tape, outputs); }

Traced::Traced(const Program& program, Size result) {
  Tape tape;
  Matrix<Tape::Value> input(program.outer);
  for (Tape::Value& cell : input.cells) cell = tape.input();
  build(tape, corner(theory::run<Tape>(program, input, tape), result).cells);
}

void Traced::build(const Tape& tape, const std::vector<Tape::Value>& outputs) {
  using Kind = Tape::Kind;
  inputs_ = tape.inputs();
  const auto& nodes = tape.nodes();
  // The last instruction that reads a node. Outputs and constants are live to the end; -1 marks a node that is not read.
  constexpr int32_t kForever = INT32_MAX;
  std::vector<int32_t> last(nodes.size(), -1), place(nodes.size(), -1);
  for (const Tape::Value output : outputs) last[static_cast<size_t>(output)] = kForever;
  for (size_t at = nodes.size(); at-- > 0;) {
    if (last[at] < 0 || nodes[at].kind == Kind::constant || nodes[at].kind == Kind::input) continue;
    for (const int32_t operand : {nodes[at].a, nodes[at].b})
      last[static_cast<size_t>(operand)] = std::max(last[static_cast<size_t>(operand)], static_cast<int32_t>(at));
  }
  std::vector<int32_t> free;
  const auto take = [&] {
    if (free.empty()) {
      memory_.emplace_back();
      return static_cast<int32_t>(memory_.size() - 1);
    }
    const int32_t reused = free.back();
    free.pop_back();
    return reused;
  };
  // Inputs and constants exist before the first instruction.
  for (size_t at = 0; at < nodes.size(); ++at) {
    if (last[at] < 0) continue;
    if (nodes[at].kind == Kind::input) input_places_.emplace_back(nodes[at].a, place[at] = take());
    if (nodes[at].kind != Kind::constant) continue;
    place[at] = take();
    memory_[static_cast<size_t>(place[at])].fill(nodes[at].value);
    last[at] = kForever;
  }
  for (size_t at = 0; at < nodes.size(); ++at) {
    if (last[at] < 0 || nodes[at].kind == Kind::constant || nodes[at].kind == Kind::input) continue;
    const auto a = static_cast<size_t>(nodes[at].a), b = static_cast<size_t>(nodes[at].b);
    const int32_t from_a = place[a], from_b = place[b];
    // The result may use the place of an operand: each lane is read before it is written.
    if (last[a] == static_cast<int32_t>(at)) free.push_back(place[a]);
    if (a != b && last[b] == static_cast<int32_t>(at)) free.push_back(place[b]);
    place[at] = take();
    instructions_.push_back({nodes[at].kind, from_a, from_b, place[at]});
  }
  for (const Tape::Value output : outputs) outputs_.push_back(place[static_cast<size_t>(output)]);
}

void Traced::run(const std::vector<Lanes>& inputs, std::vector<Lanes>& outputs) {
  for (const auto& [number, at] : input_places_) memory_[static_cast<size_t>(at)] = inputs[static_cast<size_t>(number)];
  int overflow = 0;
  for (const auto& [kind, from_a, from_b, into] : instructions_) {
    const Lanes &a = memory_[static_cast<size_t>(from_a)], &b = memory_[static_cast<size_t>(from_b)];
    Lanes& to = memory_[static_cast<size_t>(into)];
    if (kind == Tape::Kind::sum)
      for (size_t lane = 0; lane < kLanes; ++lane) overflow |= static_cast<int>(__builtin_add_overflow(a[lane], b[lane], &to[lane]));
    else
      for (size_t lane = 0; lane < kLanes; ++lane) overflow |= static_cast<int>(__builtin_mul_overflow(a[lane], b[lane], &to[lane]));
  }
  if (overflow != 0) throw Error("theory: a number does not fit into 64 bits");
  outputs.resize(outputs_.size());
  for (size_t k = 0; k < outputs_.size(); ++k) outputs[k] = memory_[static_cast<size_t>(outputs_[k])];
}

}  // namespace based::theory
