#include "theory/tape.h"

#include <gtest/gtest.h>

#include "based/core/error.h"
#include "theory/primitives.h"
#include "theory/statement.h"
#include "theory/statements/random_layer.h"

namespace based::theory {
namespace tape_test {

TEST(Traced, GivesWhatTheLayersGive) {
  Random random(2);
  for (int k = 0; k < 300; ++k) {
    const Size outer{random.between(1, 4), random.between(1, 3)}, inner{outer.rows + 1, outer.columns + 1};
    Program program{outer, inner, {}};
    for (int64_t layers = random.between(0, 3); layers > 0; --layers) program.layers.push_back(random_layer(random, inner));
    Traced traced(program, inner);
    std::vector<Lanes> inputs(static_cast<size_t>(traced.inputs())), outputs;
    std::vector<IntMatrix> drawn;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      drawn.push_back(random_matrix(random, outer, -1, 1));
      for (size_t cell = 0; cell < inputs.size(); ++cell) inputs[cell][lane] = drawn.back().cells[cell];
    }
    traced.run(inputs, outputs);
    traced.run(inputs, outputs);  // a run must not depend on the previous one
    ASSERT_EQ(traced.outputs(), inner.rows * inner.columns);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const IntMatrix expected = run(program, drawn[lane]);
      for (size_t cell = 0; cell < outputs.size(); ++cell) ASSERT_EQ(outputs[cell][lane], expected.cells[cell]) << program.tuple();
    }
  }
}

TEST(Traced, DoesNotWrapNumbersInAnyLane) {
  const Layer square{"square", identity(1), {}, {}, {{0}}};
  Traced traced({{1, 1}, {1, 1}, {square, square}}, {1, 1});
  std::vector<Lanes> inputs(1), outputs;
  inputs[0].fill(3);
  traced.run(inputs, outputs);
  EXPECT_EQ(outputs[0][kLanes - 1], 81);
  inputs[0][kLanes - 1] = 1'000'000;
  EXPECT_THROW(traced.run(inputs, outputs), Error);
}

TEST(Tape, WorksConstantsOut) {
  Tape tape;
  const Tape::Value x = tape.input();
  EXPECT_EQ(tape.sum(x, tape.constant(0)), x);
  EXPECT_EQ(tape.product(x, tape.constant(1)), x);
  EXPECT_EQ(tape.product(x, tape.constant(0)), tape.constant(0));
  EXPECT_EQ(tape.sum(tape.constant(2), tape.constant(3)), tape.constant(5));
  EXPECT_THROW(tape.product(tape.constant(INT64_MAX), tape.constant(2)), Error);
}

}  // namespace tape_test
}  // namespace based::theory
