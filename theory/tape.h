// Symbolic execution of programs: tracing a program gives a circuit of sums and products, which evaluates many inputs at once. The result
// is exact, and only the cells that affect the output are computed, instead of all N' × d' cells of every layer.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "theory/base_conv.h"

namespace based::theory {

// An arithmetic whose values are nodes of a circuit. Sums with 0, products with 0 or 1, and operations on constants are simplified.
class Tape {
 public:
  using Value = int32_t;  // 0: the constant 0
  enum class Kind : uint8_t { constant, input, sum, product };
  struct Node {
    Kind kind;
    int32_t a = 0, b = 0;  // operands; for an input, a is its number
    int64_t value = 0;     // the value of a constant
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
using Lanes = std::array<int64_t, kLanes>;  // one number for each of 64 inputs

// The part of a tape that `outputs` depend on, as instructions over a memory whose places are reused.
class Traced {
 public:
  Traced(const Tape& tape, const std::vector<Tape::Value>& outputs);
  // Traces a program. The inputs are the cells of the top left `program.outer`, and the outputs those of the top left `result`, row by row.
  Traced(const Program& program, Size result);

  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return static_cast<int64_t>(outputs_.size()); }
  int64_t gates() const { return static_cast<int64_t>(instructions_.size()); }
  // Throws Error if a number does not fit into 64 bits.
  void run(const std::vector<Lanes>& inputs, std::vector<Lanes>& outputs);

 private:
  struct Instruction {
    Tape::Kind kind;
    int32_t a, b, to;
  };
  void build(const Tape& tape, const std::vector<Tape::Value>& outputs);

  int64_t inputs_ = 0;
  std::vector<Instruction> instructions_;
  std::vector<std::pair<int32_t, int32_t>> input_places_;  // the number of an input and its place
  std::vector<int32_t> outputs_;
  std::vector<Lanes> memory_;
};

}  // namespace based::theory
