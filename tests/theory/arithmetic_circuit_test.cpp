#include "theory/arithmetic_circuit.h"

#include <gtest/gtest.h>

namespace based::theory {
namespace arithmetic_circuit_test {

IntMatrix output_of(const ArithmeticCircuit& circuit, const std::vector<int64_t>& inputs) {
  IntMatrix row({1, static_cast<int64_t>(inputs.size())});
  row.cells = inputs;
  return corner(run(compile_in_a_row(circuit), row), {1, static_cast<int64_t>(circuit.outputs.size())});
}

TEST(ArithmeticCircuit, ItsShapeIsCounted) {
  ArithmeticCircuit circuit;
  Tape& tape = circuit.tape;
  const Tape::Value x = tape.input(), y = tape.input();
  const Tape::Value product = tape.product(x, y);
  tape.product(product, product);  // not used by an output
  circuit.outputs = {tape.sum(product, x), y};
  const CircuitShape shape = shape_of(circuit);
  EXPECT_EQ(shape.inputs, 2);
  EXPECT_EQ(shape.size, 4);
  EXPECT_EQ(shape.depth, 2);
  EXPECT_EQ(shape.width, 3);  // x·y, x and y between the gates
  const Program program = compile_in_a_row(circuit);
  EXPECT_EQ(program.tuple(), "(1, 5, 2, 1, 6)");
  EXPECT_EQ(output_of(circuit, {3, 5}).cells, (std::vector<int64_t>{18, 5}));
}

TEST(ArithmeticCircuit, OutputsMayBeInputsConstantsOrTwice) {
  ArithmeticCircuit circuit;
  const Tape::Value unused = circuit.tape.input(), x = circuit.tape.input();
  (void)unused;
  circuit.outputs = {circuit.tape.constant(-4), x, x, circuit.tape.constant(0)};
  EXPECT_EQ(output_of(circuit, {1, 2}).cells, (std::vector<int64_t>{-4, 2, 2, 0}));
}

TEST(ArithmeticCircuit, WiresBelowEachOtherCostLogarithmsOfTheWidth) {
  int64_t last = 0;
  for (const int64_t inputs : {4, 8, 16, 32}) {
    const ArithmeticCircuit circuit = sorting_network(inputs);
    const CircuitShape shape = shape_of(circuit);
    const Program program = compile(circuit);
    EXPECT_EQ(program.outer, (Size{inputs, 1}));
    EXPECT_EQ(program.inner.columns, 3);
    EXPECT_LE(program.inner.rows, 4 * shape.width);
    EXPECT_GT(program.depth(), last);
    last = program.depth();
  }
}

TEST(ArithmeticCircuit, PowersAreShallowerThanHorner) {
  EXPECT_EQ(shape_of(polynomial_horner(15)).depth, 30);
  EXPECT_LE(shape_of(polynomial_powers(15)).depth, 8);
}

}  // namespace arithmetic_circuit_test
}  // namespace based::theory
