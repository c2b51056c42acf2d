#include "theory/constructed/statements.h"

#include "based/core/random.h"
#include "based/mixers/kit/mixer.h"
#include "theory/constructed/causal_solver.h"
#include "theory/primitives.h"

namespace based {
namespace {

using theory::IntMatrix;
using theory::Program;
using theory::Trial;

// base_conv computes u + conv(u) ⊙ (Wu + b). With W = 0 and b = 1 it adds only the filtered input: the appendix's layer that has nothing
// but a filter.
Tensor filtered(const Tensor& u, const Tensor& taps) {
  const torch::NoGradGuard no_grad;
  const int64_t channels = u.size(1);
  const Config options(Config::Table{{"kernel_size", Config(int64_t{-1})}, {"l_max", Config(taps.size(0))}});
  const auto mixer = find_mixer("base_conv").make(options, {channels, 0, 1});
  mixer->to(torch::kFloat64);
  auto parameters = mixer->named_parameters();
  parameters["projection.weight"].zero_();
  parameters["projection.bias"].fill_(1);
  parameters["filter.taps"].copy_(taps.expand({channels, taps.size(0)}));
  return mixer->forward(u, Pass(Sequences::equal(1, u.size(0)))) - 2 * u;
}

Tensor tensor_of(const IntMatrix& matrix) {
  return torch::tensor(matrix.cells, torch::kInt64).to(torch::kFloat64).view({matrix.size.rows, matrix.size.columns});
}

void try_layer(Trial& trial, const Program& program, const Tensor& taps, const std::string& name) {
  Random random(11);
  for (int drawn = 0; drawn < (trial.quick() ? 5 : 50); ++drawn) {
    const IntMatrix input = theory::random_matrix(random, program.outer, -9, 9);
    const Tensor expected = tensor_of(corner(run(program, input), program.outer)), found = filtered(tensor_of(input), taps);
    trial.count();
    // The long filter is computed by an FFT in double precision.
    trial.require((found - expected).abs().max().item<double>() < 1e-9, name + " by base_conv differs from the layer of the appendix");
  }
}

void verify_layers(Trial& trial) {
  for (const int64_t rows : {1, 2, 7, 32}) {
    for (const int64_t shift : {int64_t{0}, int64_t{1}, rows - 1}) {
      if (shift >= rows) continue;
      Tensor taps = torch::zeros({rows}, torch::kFloat64);
      taps[shift] = 1;
      try_layer(trial, Program{{rows, 3}, {rows, 3}, {theory::shift_down(shift)}}, taps, "shift down");
    }
    try_layer(trial, Program{{rows, 3}, {rows, 3}, {theory::cumulative_sum(rows)}}, torch::ones({rows}, torch::kFloat64), "cumulative sum");
    trial.size("N = " + std::to_string(rows));
  }
  trial.layers(1, int64_t{1});
  trial.note("the other primitives look ahead, or treat rows by their number, which a layer of a model cannot: its biases are channels'");
}

// Tries every pair (key, value) of a vocabulary at least once, at every distance that the length allows.
void try_solver(Trial& trial, const CausalSolver& solver) {
  constexpr int64_t kTogether = 64;
  const torch::NoGradGuard no_grad;
  const auto model = solver.build();
  const auto half = solver.vocab_size / 2, pairs = std::min(solver.keys(), solver.length / 3);
  Random random(5);
  for (int drawn = 0; drawn < (trial.quick() ? 1 : 4); ++drawn) {
    std::vector<int64_t> ids, expected;
    for (int64_t text = 0; text < kTogether; ++text) {
      std::vector<int64_t> keys(static_cast<size_t>(solver.keys()));
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i) + 1;
      for (size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[random.below(i)]);
      std::vector<int64_t> row(static_cast<size_t>(solver.length)), answers(row.size(), -1);
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const auto at = static_cast<size_t>(pair);
        row[2 * at] = keys[at];
        row[2 * at + 1] = half + static_cast<int64_t>(random.below(static_cast<uint64_t>(solver.values())));
        const auto question =
            static_cast<size_t>(2 * pairs + pair);  // queries follow the order of the pairs, so that all distances are equal
        row[question] = keys[at];
        answers[question] = row[2 * at + 1];
      }
      ids.insert(ids.end(), row.begin(), row.end());
      expected.insert(expected.end(), answers.begin(), answers.end());
    }
    const Tensor answers = torch::tensor(expected, torch::kInt64), asked = (answers >= 0).nonzero().squeeze(1);
    const Tensor hidden = model->forward(torch::tensor(ids, torch::kInt64), Sequences::equal(kTogether, solver.length));
    const Tensor said = model->most_likely(hidden.index_select(0, asked));
    trial.count(asked.size(0));
    trial.require(said.equal(answers.index_select(0, asked)), "a vocabulary of " + std::to_string(solver.vocab_size) + " in " +
                                                                  std::to_string(solver.length) + " tokens: a query is answered wrongly");
  }
  trial.layers(model->layers(), int64_t{3});
  trial.size("V = " + std::to_string(solver.vocab_size) + ", N = " + std::to_string(solver.length));
}

void verify_solver(Trial& trial) {
  for (const auto& [vocab_size, length] : {std::pair<int64_t, int64_t>{4, 6}, {8, 16}, {64, 64}, {64, 256}, {128, 256}})
    try_solver(trial, {vocab_size, length});
  trial.note("not in the paper, whose program looks ahead; a key's one-hot row times a value's code makes a model of width O(V log V)");
}

const theory::Statement layers{"causal_layers", "Propositions 'prim-shift' and 'prim:cumulativesum'",
                               "what is causal of the primitives is a layer of the models, too", 750, verify_layers};
const theory::Statement solver{"causal_solver", "beside Theorem 'MQAR:math'",
                               "three causal layers of the models, weights constructed, solve recall in fp32", 30'464, verify_solver};

}  // namespace

const std::vector<const theory::Statement*>& constructed_statements() {
  static const std::vector<const theory::Statement*> all{&layers, &solver};
  return all;
}

const std::vector<const theory::Statement*>& all_statements() {
  static const std::vector<const theory::Statement*> all = [] {
    std::vector<const theory::Statement*> list = theory::statements();
    list.insert(list.end(), constructed_statements().begin(), constructed_statements().end());
    return list;
  }();
  return all;
}

}  // namespace based
