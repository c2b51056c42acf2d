// The law of steps of several tokens.
#include <array>
#include <cmath>
#include <sstream>

#include "based/mixers/kit/rounds.h"
#include "tests/mixers/laws.h"

namespace based::laws {
namespace {

constexpr std::array<int64_t, 2> kPlaces = {2, 0};  // the slots of the two sequences

// A mixer with random weights, as large as those of the other laws.
std::shared_ptr<Mixer> drawn_mixer(const Subject& subject, torch::Dtype dtype) {
  torch::manual_seed(7);
  std::shared_ptr<Mixer> mixer = subject.make();
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : mixer->parameters())
    parameter.normal_(0, parameter.dim() < 2 ? 0.5 : 1 / std::sqrt(static_cast<double>(parameter.size(-1))));
  mixer->to(subject.device, dtype);
  return mixer;
}

Tensor drawn_rows(const Subject& subject, int64_t rows, torch::Dtype dtype) {
  return (torch::randn({rows, subject.d_model}) + torch::linspace(-1, 1, subject.d_model)).to(dtype);
}

Violation different_bits(const std::string& what, const Tensor& actual, const Tensor& expected) {
  if (actual.sizes() == expected.sizes() && actual.equal(expected)) return {};
  std::ostringstream text;
  text << what << ": " << actual.sizes() << ", expected " << expected.sizes();
  if (actual.sizes() == expected.sizes()) text << ", " << actual.ne(expected).sum().item<int64_t>() << " numbers differ";
  return text.str();
}

// The two sequences' rows in the order of rounds: the first has `tokens` tokens, the second half as many.
struct RoundRows {
  std::vector<int64_t> slots, seen, round_rows;

  RoundRows(int64_t tokens, const std::array<int64_t, 2>& before) {
    for (int64_t i = 0; i < tokens; ++i) {
      round_rows.push_back(2 * i < tokens ? 2 : 1);
      for (size_t sequence = 0; sequence < static_cast<size_t>(round_rows.back()); ++sequence)
        slots.push_back(kPlaces.at(sequence)), seen.push_back(before.at(sequence) + i);
    }
  }
};

MixerState copy_of(MixerState state) {
  for (StateTensor& tensor : state.tensors()) tensor.value = tensor.value.clone();
  return state;
}

// `tokens` tokens at once and one by one from the state `start`, of sequences that have seen `before` tokens.
Violation compare_with_single_steps(Mixer& mixer, const Tensor& x, int64_t tokens, const MixerState& start,
                                    const std::array<int64_t, 2>& before) {
  const RoundRows rows(tokens, before);
  MixerState apart = copy_of(start), together = copy_of(start);
  const auto step = [&](MixerState& state, size_t row) {
    const Pass pass = Pass::step(torch::tensor({rows.slots[row]}), torch::tensor({rows.seen[row]}));
    return mixer.step(x.narrow(0, static_cast<int64_t>(row), 1), state, pass);
  };
  std::vector<Tensor> expected;
  std::vector<MixerState> after;  // the first sequence's state after each of its tokens
  for (size_t row = 0; row < rows.slots.size(); ++row) {
    expected.push_back(step(apart, row));
    if (rows.slots[row] == kPlaces[0]) after.push_back(apart.extract(kPlaces[0]));
  }
  StateJournal journal;
  const Pass pass = Pass::step_rounds(torch::tensor(rows.slots), torch::tensor(rows.seen), rows.round_rows, &journal);
  const std::string what = " of a step of " + std::to_string(tokens) + " tokens";
  Violation violation = different_bits("output" + what, step_any(mixer, x, together, pass), torch::cat(expected));
  for (int64_t kept = tokens; kept >= 1; --kept) {
    if (kept < tokens) journal.restore(0, kPlaces[0], kept);
    const MixerState back = together.extract(kPlaces[0]);
    for (const StateTensor& tensor : back.tensors()) {
      if (!violation.empty() || tensor.grows) continue;
      const Tensor& wanted = std::as_const(after[static_cast<size_t>(kept - 1)])[tensor.name];
      violation = different_bits("state's " + tensor.name + " after " + std::to_string(kept) + what, tensor.value, wanted);
    }
  }
  if (tokens == 1 || !violation.empty()) return violation;
  const auto second = static_cast<size_t>(rows.round_rows[0]);  // the row of the first sequence's second token
  return different_bits("second token after a return to the first" + what, step(together, second), expected[second]);
}

}  // namespace

Violation rounds_equal_steps(const Subject& subject, torch::Dtype dtype) {
  const std::shared_ptr<Mixer> mixer = drawn_mixer(subject, dtype);
  const torch::NoGradGuard no_grad;
  const std::array<int64_t, 2> before = {23, 5};
  MixerState start = mixer->make_state(3);
  for (size_t i = 0; i < kPlaces.size(); ++i) {
    const Pass pass(Sequences::equal(1, before.at(i)), torch::tensor({kPlaces.at(i)}), torch::zeros({1}, torch::kInt64));
    mixer->prefill(drawn_rows(subject, before.at(i), dtype), start, pass);
  }
  for (int64_t tokens = 1; tokens <= 8; ++tokens) {
    const Tensor x = drawn_rows(subject, tokens + (tokens + 1) / 2, dtype);
    const Violation violation = compare_with_single_steps(*mixer, x, tokens, start, before);
    if (!violation.empty()) return violation;
  }
  return {};
}

}  // namespace based::laws
