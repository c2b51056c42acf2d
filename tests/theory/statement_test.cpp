#include "theory/statement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/error.h"
#include "theory/draw.h"
#include "theory/primitives.h"

namespace based::theory {
namespace statement_test {

using testing::HasSubstr;

TEST(Trial, FailsWhereTheProgramDoesSomethingElse) {
  Trial trial;
  const Program program{{2, 1}, {2, 1}, {shift_down(1)}};
  IntMatrix expected({2, 1});
  expected.cells = {0, 1};
  EXPECT_TRUE(trial.compare(program, IntMatrix({2, 1}, 1), expected, "case"));
  expected.cells = {0, 2};
  EXPECT_FALSE(trial.compare(program, IntMatrix({2, 1}, 1), expected, "case"));
  EXPECT_EQ(trial.result().verdict(), "FAILS");
  EXPECT_EQ(trial.result().inputs, 2);
  EXPECT_THAT(trial.result().failures[0], HasSubstr("case: row 1 is (1), not (2)"));
}

TEST(Trial, FailsWhereMoreLayersWereBuiltThanClaimed) {
  Trial trial;
  trial.layers(3, 3);
  EXPECT_EQ(trial.result().verdict(), "holds");
  trial.layers(4, 3);
  EXPECT_EQ(trial.result().verdict(), "FAILS");
}

TEST(Trial, FailsWhereACounterexampleIsNone) {
  Trial trial;
  trial.correct({"printed", "shown", "repair"}, true);
  EXPECT_EQ(trial.result().verdict(), "holds as repaired");
  trial.correct({"printed", "shown", "repair"}, false);
  EXPECT_EQ(trial.result().verdict(), "FAILS");
}

TEST(Statements, AreFoundByName) {
  EXPECT_EQ(&find_statement(statements(), "one_hot"), [] {
    for (const Statement* statement : statements())
      if (std::string(statement->name) == "one_hot") return statement;
    return static_cast<const Statement*>(nullptr);
  }());
  try {
    find_statement(statements(), "one_hit");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'one_hot'?"));
  }
}

TEST(Statements, AreDrawn) {
  int drawn = 0;
  for (const Statement* statement : statements()) {
    if (!statement->can_be_drawn()) continue;
    SCOPED_TRACE(statement->name);
    const size_t layers = drawing_of(*statement).frames.size() - 1;
    if (statement->example != nullptr) {
      EXPECT_EQ(layers, statement->example().program.layers.size());
    }
    const std::string text = draw_text(*statement), svg = draw_svg(*statement);
    EXPECT_THAT(text, HasSubstr("layer " + std::to_string(layers) + ": "));
    EXPECT_THAT(svg, testing::StartsWith("<svg "));
    EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
    ++drawn;
  }
  EXPECT_GT(drawn, 10);
}

// Shows the bits of 2, 1 and 3, then their one-hot rows.
TEST(Statements, TheOneHotPrimitiveIsDrawnAsNumbersThenOneHotRows) {
  const std::string text = draw_text(find_statement(statements(), "one_hot"));
  EXPECT_THAT(text, HasSubstr("input\n    1  . 1 .\n    2  1 . .\n    3  1 1 .\n"));
  EXPECT_THAT(text, testing::EndsWith("    1  . 1 .\n    2  1 . .\n    3  . . 1\n"));
}

}  // namespace statement_test
}  // namespace based::theory
