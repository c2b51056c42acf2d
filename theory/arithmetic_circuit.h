// Compiles any arithmetic circuit into layers of BaseConv. A circuit is a tape with outputs: its nodes are inputs, constants, sums and
// products.
#pragma once
#include <vector>

#include "theory/base_conv.h"
#include "theory/tape.h"

namespace based::theory {

struct ArithmeticCircuit {
  Tape tape;
  std::vector<Tape::Value> outputs;

  std::vector<int64_t> evaluate(const std::vector<int64_t>& inputs) const;  // one input, over the integers
};

// The paper's (n, s, Δ, w), counted over the nodes that the outputs depend on. Constants occupy no wire.
struct CircuitShape {
  int64_t inputs = 0;  // n
  int64_t size = 0;    // s: nodes
  int64_t depth = 0;   // Δ: gates on the longest path from an input to an output
  int64_t width = 0;   // w: the largest number of values that are live between two levels of gates
};
CircuitShape shape_of(const ArithmeticCircuit& circuit);

// The theorem's form. Wires are rows: the input is n x 1, the output outputs x 1. The inner dimension is 2w' x 3 with w' the smallest power
// of two that is at least max(n, w, outputs). A level of gates takes at most 10·log₂(2w') layers that route operands, and three of
// arithmetic.
Program compile(const ArithmeticCircuit& circuit);

// Wires are columns of one row, and W moves them: the input is 1 x n, the output 1 x outputs. Each level of gates takes two layers, and one
// more layer orders the outputs: 2Δ + 1 layers. The inner dimension is 1 x max(n, 2w, outputs).
Program compile_in_a_row(const ArithmeticCircuit& circuit);

// Circuits for tests.
ArithmeticCircuit matrix_product(int64_t size);       // inputs A, then B, row by row; outputs A·B
ArithmeticCircuit polynomial_horner(int64_t degree);  // inputs x, then the coefficients from the constant one up: depth 2·degree
ArithmeticCircuit polynomial_powers(int64_t degree);  // the same polynomial in depth O(log degree)
ArithmeticCircuit sorting_network(int64_t inputs);    // Batcher's odd-even merge sort of bits; `inputs` is a power of two

}  // namespace based::theory
