#include "theory/constructed/statements.h"

#include <gtest/gtest.h>

#include "based/core/error.h"
#include "based/models/weights.h"
#include "tests/core/temporary_folder.h"
#include "theory/constructed/causal_solver.h"

namespace based {
namespace statements_test {

TEST(Constructed, EveryStatementHolds) {
  for (const theory::Statement* statement : constructed_statements()) {
    theory::Trial trial({}, /*quick=*/true);
    statement->verify(trial);
    for (const std::string& failure : trial.result().failures) ADD_FAILURE() << statement->name << ": " << failure;
    EXPECT_GT(trial.result().inputs, 0) << statement->name;
  }
}

// It runs token by token and from a state, and can be saved and loaded.
TEST(CausalSolver, IsAModelAsAnyOther) {
  const CausalSolver solver{16, 24};
  const TemporaryFolder folder;
  save_model(*solver.build(), folder.file("model"));
  const auto model = load_model(folder.file("model")).model;
  const torch::NoGradGuard no_grad;
  // Keys 3, 5, 1 with values 9, 15, 8, followed by the keys in another order and fillers.
  const std::vector<int64_t> ids{3, 9, 5, 15, 1, 8, 0, 5, 12, 1, 0, 3};
  const std::vector<std::pair<size_t, int64_t>> answers{{7, 15}, {9, 8}, {11, 9}};
  ModelState state = model->make_state(1);
  const Slots slot = torch::zeros({1}, torch::kInt64);
  std::vector<int64_t> said;
  for (const int64_t id : ids) said.push_back(model->most_likely(model->step(torch::tensor({id}), state, slot)).item<int64_t>());
  for (const auto& [at, value] : answers) EXPECT_EQ(said[at], value) << "token " << at;
}

TEST(CausalSolver, SizesThatItDoesNotTakeAreNamed) {
  for (const CausalSolver& solver : {CausalSolver{7, 16}, CausalSolver{2, 16}, CausalSolver{1026, 16}, CausalSolver{16, 1}})
    EXPECT_THROW(solver.build(), UsageError) << solver.vocab_size << ", " << solver.length;
}

}  // namespace statements_test
}  // namespace based
