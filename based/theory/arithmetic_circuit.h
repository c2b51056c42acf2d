// Any arithmetic circuit as layers of BaseConv. A circuit is a tape with outputs: its nodes are inputs, constants, sums and products.
#pragma once
#include <vector>

#include "based/theory/base_conv.h"
#include "based/theory/tape.h"

namespace based::theory {

struct ArithmeticCircuit {
  Tape tape;
  std::vector<Tape::Value> outputs;

  std::vector<int64_t> evaluate(const std::vector<int64_t>& inputs) const;  // one input, over the integers
};

// The paper's (n, s, Δ, w), of what the outputs depend on. Constants lie on no wire.
struct CircuitShape {
  int64_t inputs = 0;  // n
  int64_t size = 0;    // s: nodes
  int64_t depth = 0;   // Δ: gates on the longest way from an input to an output
  int64_t width = 0;   // w: the most values that are needed at once, between two levels of gates
};
CircuitShape shape_of(const ArithmeticCircuit& circuit);

// The theorem's form: wires lie below each other, n x 1 in, outputs x 1 out. The inner dimension is 2w' x 3, w' the power of two from
// max(n, w, outputs) on; a level of gates costs at most 10·log₂(2w') layers, which bring operands together, and three of arithmetic.
Program compile(const ArithmeticCircuit& circuit);

// Wires lie beside each other in one row, 1 x n in, 1 x outputs out, and W moves them: two layers for each level of gates and one that puts
// the outputs in order, 2Δ + 1. The inner dimension is 1 x max(n, 2w, outputs).
Program compile_in_a_row(const ArithmeticCircuit& circuit);

// Circuits to try it on.
ArithmeticCircuit matrix_product(int64_t size);       // inputs A, then B, row by row; outputs A·B
ArithmeticCircuit polynomial_horner(int64_t degree);  // inputs x, then the coefficients from the constant one up: depth 2·degree
ArithmeticCircuit polynomial_powers(int64_t degree);  // the same polynomial in depth O(log degree)
ArithmeticCircuit sorting_network(int64_t inputs);    // Batcher's odd-even merge sort of bits; `inputs` is a power of two

}  // namespace based::theory
