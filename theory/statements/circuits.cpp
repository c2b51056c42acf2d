#include <algorithm>

#include "theory/arithmetic_circuit.h"
#include "theory/integers.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace circuits_statement {

using Inputs = std::vector<int64_t>;

struct Tried {
  std::string name;
  ArithmeticCircuit circuit;
  std::function<Inputs(const Inputs&)> expected;
  int64_t largest = kLargest;  // the largest absolute value of inputs; 1: bits
};

IntMatrix row_of(const Inputs& numbers) {
  IntMatrix row({1, static_cast<int64_t>(numbers.size())});
  row.cells = numbers;
  return row;
}

IntMatrix column_of(const Inputs& numbers) {
  IntMatrix column({static_cast<int64_t>(numbers.size()), 1});
  column.cells = numbers;
  return column;
}

void try_circuit(Trial& trial, const Tried& tried, const std::vector<Inputs>& inputs, bool say) {
  const CircuitShape shape = shape_of(tried.circuit);
  const Program program = compile(tried.circuit), in_a_row = compile_in_a_row(tried.circuit);
  const auto outputs = static_cast<int64_t>(tried.circuit.outputs.size());
  const int64_t widest = std::max({shape.inputs, shape.width, outputs, int64_t{1}}), bits = ceil_log2(widest) + 1;
  trial.layers(program.depth(), "O(Δ log w)");
  trial.require(program.depth() <= (shape.depth + 1) * (10 * bits + 3), tried.name + ": more than (Δ + 1)(10·log₂(2w') + 3) layers");
  trial.require(program.inner.rows <= 4 * widest && program.inner.columns == 3, tried.name + ": an inner dimension above 4w x 3");
  trial.require(in_a_row.depth() == 2 * shape.depth + 1, tried.name + ": not 2Δ + 1 layers in a row");
  trial.require(in_a_row.inner.columns <= std::max({shape.inputs, 2 * shape.width, outputs}), tried.name + ": wider than 2w in a row");
  for (const Inputs& input : inputs) {
    const Inputs expected = tried.expected(input);
    trial.compare(program, column_of(input), column_of(expected), tried.name);
    trial.compare(in_a_row, row_of(input), row_of(expected), tried.name + " in a row");
  }
  if (!say) return;
  trial.size(tried.name);
  trial.note(tried.name + ": (n, s, Δ, w) = (" + std::to_string(shape.inputs) + ", " + std::to_string(shape.size) + ", " +
             std::to_string(shape.depth) + ", " + std::to_string(shape.width) + "), (N, L, d, N', d') = " + program.tuple() + ", " +
             std::to_string(program.parameters()) + " parameters that are not 0; in a row " + in_a_row.tuple() + ", " +
             std::to_string(in_a_row.parameters()));
}

std::vector<Inputs> drawn(Random& random, int64_t inputs, int64_t largest, int64_t count) {
  std::vector<Inputs> all;
  for (int64_t k = 0; k < count; ++k) all.push_back(random_matrix(random, {1, inputs}, largest == 1 ? 0 : -largest, largest).cells);
  return all;
}

Inputs product_of(const Inputs& input, int64_t size) {
  Inputs product(static_cast<size_t>(size * size));
  for (int64_t i = 0; i < size; ++i)
    for (int64_t j = 0; j < size; ++j)
      for (int64_t k = 0; k < size; ++k)
        product[static_cast<size_t>(i * size + j)] +=
            input[static_cast<size_t>(i * size + k)] * input[static_cast<size_t>(size * size + k * size + j)];
  return product;
}

Inputs polynomial_of(const Inputs& input) {
  int64_t power = 1, sum = 0;
  for (size_t k = 1; k < input.size(); ++k, power *= input[0]) sum += power * input[k];
  return {sum};
}

Inputs sorted(Inputs input) {
  std::sort(input.begin(), input.end());
  return input;
}

// A random circuit: gates have any two earlier values as operands; outputs may be repeated and may be inputs or constants.
ArithmeticCircuit random_circuit(Random& random, int64_t inputs, int64_t gates) {
  ArithmeticCircuit circuit;
  std::vector<Tape::Value> values;
  for (int64_t k = 0; k < inputs; ++k) values.push_back(circuit.tape.input());
  for (int64_t k = 0; k < 3; ++k) values.push_back(circuit.tape.constant(random.between(-2, 2)));
  const auto any = [&] { return values[random.below(values.size())]; };
  for (int64_t k = 0; k < gates; ++k) {
    const Tape::Value a = any(), b = any();
    values.push_back(random.below(2) == 0 ? circuit.tape.sum(a, b) : circuit.tape.product(a, b));
  }
  for (int64_t k = 0; k < 4; ++k) circuit.outputs.push_back(any());
  return circuit;
}

void verify(Trial& trial) {
  Random random(37);
  const int64_t count = 5 * inputs_per_size(trial);
  for (const int64_t size : {1, 2, 3, 5}) {
    const Tried tried{"matrix product " + std::to_string(size), matrix_product(size),
                      [size](const Inputs& input) { return product_of(input, size); }};
    try_circuit(trial, tried, drawn(random, 2 * size * size, tried.largest, count), size > 1);
  }
  for (const int64_t degree : {1, 7, 15}) {
    const std::string name = std::to_string(degree);
    try_circuit(trial, {"Horner of degree " + name, polynomial_horner(degree), polynomial_of, 4}, drawn(random, degree + 2, 4, count),
                degree > 1);
    try_circuit(trial, {"powers of degree " + name, polynomial_powers(degree), polynomial_of, 4}, drawn(random, degree + 2, 4, count),
                degree > 1);
  }
  for (const int64_t wires : {2, 4, 8, 16}) {
    std::vector<Inputs> inputs = drawn(random, wires, 1, count);
    for (int64_t number = 0; wires <= 8 && number < int64_t{1} << wires; ++number) {
      inputs.emplace_back();
      for (int64_t k = 0; k < wires; ++k) inputs.back().push_back(bit_of(number, k));
    }
    try_circuit(trial, {"sorting " + std::to_string(wires) + " bits", sorting_network(wires), sorted, 1}, inputs, true);
  }
  trial.size(std::to_string(kSizes) + " random circuits");
  for (int k = 0; k < kSizes; ++k) {
    const int64_t inputs = random.between(1, 6);
    const ArithmeticCircuit circuit = random_circuit(random, inputs, random.between(0, 30));
    const std::vector<Inputs> values = drawn(random, inputs, 1, trial.quick() ? 2 : 5);
    try {
      try_circuit(trial, {"a random circuit", circuit, [&](const Inputs& input) { return circuit.evaluate(input); }}, values, false);
    } catch (const Error&) {
      // Repeated squaring overflows 64 bits; such a circuit is skipped.
    }
  }
}

Example example() {
  const ArithmeticCircuit circuit = sorting_network(4);
  return {compile_in_a_row(circuit), row_of({1, 0, 1, 0}), "A sorting network puts 1, 0, 1, 0 in order, its wires beside each other."};
}

}  // namespace circuits_statement

extern const Statement statement_circuits{
    "circuits", "Theorem 'gen-ac'",         "any arithmetic circuit of depth Δ and width w, in O(Δ log w) layers",
    5352,       circuits_statement::verify, circuits_statement::example};

}  // namespace based::theory
