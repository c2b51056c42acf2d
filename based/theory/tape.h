// Programs run on symbols: what a program computes becomes a circuit of sums and products, which many inputs at once can be put through. It
// is exact, and an input costs the cells that matter instead of all N' × d' of every layer.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "based/theory/base_conv.h"

namespace based::theory {

// An arithmetic whose values are nodes of a circuit. Sums with 0 and products with 0, 1 and of constants are worked out at once.
class Tape {
 public:
  using Value = int32_t;  // 0: the constant 0
  enum class Kind : uint8_t { constant, input, sum, product };
  struct Node {
    Kind kind;
    int32_t a = 0, b = 0;  // operands; of an input a is its number
    int64_t value = 0;     // of a constant
  };

  Tape();
  Value constant(int64_t value);
  Value input();
  Value sum(Value a, Value b);
  Value product(Value a, Value b);
  const std::vector<Node>& nodes() const { return nodes_; }
  int64_t inputs() const { return inputs_; }

 private:
  Value add(const Node& node);
  std::vector<Node> nodes_;
  std::map<int64_t, Value> constants_;
  int32_t inputs_ = 0;
};

inline constexpr int kLanes = 64;
using Lanes = std::array<int64_t, kLanes>;  // one number of each of 64 inputs

// What `outputs` of a tape depend on, as instructions over a memory in which places are used again.
class Traced {
 public:
  Traced(const Tape& tape, const std::vector<Tape::Value>& outputs);
  // A program's: inputs and outputs are the cells of the top left `program.outer` and `result`, row by row.
  Traced(const Program& program, Size result);

  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return static_cast<int64_t>(outputs_.size()); }
  int64_t gates() const { return static_cast<int64_t>(instructions_.size()); }
  // Throws Error where a number does not fit into 64 bits.
  void run(const std::vector<Lanes>& inputs, std::vector<Lanes>& outputs);

 private:
  struct Instruction {
    Tape::Kind kind;
    int32_t a, b, to;
  };
  void build(const Tape& tape, const std::vector<Tape::Value>& outputs);

  int64_t inputs_ = 0;
  std::vector<Instruction> instructions_;
  std::vector<std::pair<int32_t, int32_t>> input_places_;  // number of the input, its place
  std::vector<int32_t> outputs_;
  std::vector<Lanes> memory_;
};

}  // namespace based::theory
