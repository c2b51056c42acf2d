#include "theory/integers.h"
#include "theory/primitives.h"
#include "theory/statements/recall_inputs.h"

namespace based::theory {
namespace recall_steps_statement {

// A variant of the program in which one step is as printed in the paper and all others are correct.
struct PrintedStep {
  std::string printed, repair;
  RecallSizes sizes;
  void (*change)(const RecallSizes& sizes, Program& program);
};

// The main layer of a step: the middle one of the three layers of remember().
Layer& layer_of(Program& program, const std::string& step) {
  std::vector<Layer*> found;
  for (Layer& layer : program.layers)
    if (layer.what.starts_with(step + ": ")) found.push_back(&layer);
  BASED_ASSERT(!found.empty());
  return *found[found.size() / 2];
}

void close_gate(const RecallSizes&, Program& program) {
  for (Layer& layer : program.layers)
    if (layer.what.starts_with("2.2: multiply")) layer.gate_bias.clear();
}

// As printed: W[i, j] = 1 if i = (((j - 1) N + ⌊(i - 1) / N⌋) mod N·b̄) + 1.
void permute_as_printed(const RecallSizes& sizes, Program& program) {
  std::vector<WeightEntry> weight;
  const int64_t n = sizes.length, all = n * sizes.value_bits();
  for (int64_t i = 1; i <= all; ++i)
    for (int64_t j = 1; j <= all; ++j)
      if (i == ((j - 1) * n + (i - 1) / n) % all + 1) weight.push_back({i - 1, j - 1});
  layer_of(program, "6.3").weight = weight;
}

void keep_partial_sums(const RecallSizes& sizes, Program& program) {
  for (Patch& patch : layer_of(program, "6.5").gate_bias)
    if (patch.rows == 1) patch.rows = sizes.block();
}

void sum_blocks_of_b(const RecallSizes& sizes, Program& program) {
  for (WeightEntry& entry : layer_of(program, "8.1").weight) entry.output = entry.input % sizes.key_bits();
}

void try_printed(Trial& trial, const PrintedStep& step) {
  Program program = recall_program(step.sizes);
  step.change(step.sizes, program);
  std::string shown;
  int64_t wrong = 0, tried = 0;
  for_all_tokens(step.sizes, [&](const Tokens& tokens) {
    if (!tokens.one_match()) return;
    ++tried;
    const IntMatrix input = tokens.one_hot(step.sizes.tokens), expected = recall_by_definition(step.sizes, input);
    const IntMatrix found = corner(run(program, input), expected.size);
    if (found == expected) return;
    ++wrong;
    for (int64_t i = 0; i < expected.size.rows && shown.empty(); ++i)
      if (row_text(found, i) != row_text(expected, i))
        shown = "a query is answered " + row_text(found, i) + ", not " + row_text(expected, i);
  });
  trial.count(tried);
  trial.correct({step.printed,
                 "N = " + std::to_string(step.sizes.length) + ", d = " + std::to_string(step.sizes.tokens) + ": " + std::to_string(wrong) +
                     " of " + std::to_string(tried) + " instances come out wrong; " + shown,
                 step.repair},
                wrong > 0);
}

// Compares the printed inner dimension 4z x z, z = N̄ log N̄, with the sizes that the paper's own primitives need.
void try_inner_dimension(Trial& trial) {
  bool narrow = true;
  for (int64_t n = 8; n <= 64; n *= 2) {
    const int64_t z = n * ceil_log2(n), columns = n * RecallSizes{n, n}.key_bits();
    narrow = narrow && columns > z && 9 * z > 4 * z;
  }
  trial.correct({"the inner dimension is 4z x z, z = N̄ log N̄",
                 "N = d = 8: z = 24, and step 1.1 makes d·b = 32 columns; to remember 2z rows beside z the primitive itself asks for 3n + "
                 "3m = 9z rows",
                 "at most 20·N̄·b + 30·N̄ rows and N̄·b columns with b = ⌈log(N̄ + 1)⌉: O(N̄ log N̄), as the theorem says"},
                narrow);
}

void verify(Trial& trial) {
  trial.size("2x2, 3x2, 4x2");
  trial.layers(recall_program({3, 3}).depth(), "-");
  try_printed(trial, {"step 2.2 multiplies by uW + B₁ = u, and writes 1 for the fourth block, which is 0",
                      "B₁ = 1 in the fourth block; as printed V is lost",
                      {2, 2},
                      close_gate});
  try_printed(trial, {"step 6.3: W[i, j] = 1 where i = (((j - 1)N + ⌊(i - 1)/N⌋) mod N·b̄) + 1",
                      "W[(k - 1)N + i, (i - 1)b̄ + k] = 1 for rows i and bits k",
                      {3, 2},
                      permute_as_printed});
  try_printed(trial, {"steps 6.4 to 6.6: a cumulative sum and a shift up leave the first row alone",
                      "the other rows hold sums, too, and are zeroed by the gate of the shift",
                      {2, 2},
                      keep_partial_sums});
  try_printed(trial, {"step 8.1 sums blocks of b columns (b and b̄ are exchanged in steps 1.1, 5, 6.2, 7 and 8.1)",
                      "blocks of b̄, the bits of a value; b counts the bits of a row's number",
                      {4, 2},
                      sum_blocks_of_b});
  try_inner_dimension(trial);
  trial.note("steps 3 and 8.2 speak of O(N̄ log N̄) layers in passing; they take O(log log N̄), as their last lines say");
}

}  // namespace recall_steps_statement

extern const Statement statement_recall_steps{"recall_steps", "Proof of Theorem 'MQAR:math'",
                                              "the proof's steps, one at a time as they are printed", 736, recall_steps_statement::verify};

}  // namespace based::theory
