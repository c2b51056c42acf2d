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
  return (torch::randn({rows, subject.d_model}) + torch::linspace(-1, 1, subject.d_model)).to(subject.device, dtype);
}

Violation different_bits(const std::string& what, const Tensor& actual, const Tensor& expected) {
  if (actual.sizes() == expected.sizes() && actual.equal(expected)) return {};
  std::ostringstream text;
  text << what << ": " << actual.sizes() << ", expected " << expected.sizes();
  if (actual.sizes() == expected.sizes()) text << ", " << actual.ne(expected).sum().item<int64_t>() << " numbers differ";
  return text.str();
}

// The sequences' rows in the order of rounds: the first has `tokens` tokens, the second, if there are two, half as many.
struct RoundRows {
  std::vector<int64_t> slots, seen, round_rows;

  RoundRows(int64_t tokens, const std::array<int64_t, 2>& before, bool both) {
    for (int64_t i = 0; i < tokens; ++i) {
      round_rows.push_back(both && 2 * i < tokens ? 2 : 1);
      for (size_t sequence = 0; sequence < static_cast<size_t>(round_rows.back()); ++sequence)
        slots.push_back(kPlaces.at(sequence)), seen.push_back(before.at(sequence) + i);
    }
  }
  RoundRows(int64_t slot, int64_t before) : slots{slot}, seen{before}, round_rows{1} {}
};

MixerState copy_of(MixerState state) {
  for (StateTensor& tensor : state.tensors()) tensor.value = tensor.value.clone();
  return state;
}

// How the tokens are read at once: by the rows of several sequences, or by always kRows rows of one sequence, as on a GPU.
struct Form {
  static constexpr int64_t kRows = 8;
  bool fixed_rows;
  torch::Device device;

  // The mixer's output for these rows, x [rows, d_model].
  Tensor run(Mixer& mixer, const Tensor& x, RoundRows rows, MixerState& state, StateJournal* journal) const {
    const int64_t count = x.size(0), padding = fixed_rows ? kRows - count : 0;
    rows.slots.resize(static_cast<size_t>(count + padding), rows.slots.back());
    rows.seen.resize(static_cast<size_t>(count + padding), rows.seen.back());
    const Tensor all = torch::cat({x, x.narrow(0, count - 1, 1).expand({padding, x.size(1)})});
    const auto index = [&](const std::vector<int64_t>& values) { return torch::tensor(values, torch::kInt64).to(device); };
    const Pass pass = Pass::step_rounds(index(rows.slots), index(rows.seen), rows.round_rows, journal, padding);
    return step_any(mixer, all, state, pass).narrow(0, 0, count);
  }
  // A step of one token, to which steps of several are compared: on the CPU it is Mixer::step.
  Tensor step(Mixer& mixer, const Tensor& x, const RoundRows& row, MixerState& state) const {
    if (!device.is_cpu()) return run(mixer, x, row, state, nullptr);
    return mixer.step(x, state, Pass::step(torch::tensor(row.slots), torch::tensor(row.seen)));
  }
};

// `tokens` tokens at once and one by one from the state `start`, of sequences that have seen `before` tokens.
Violation compare_with_single_steps(Mixer& mixer, const Tensor& x, const Form& form, int64_t tokens, const MixerState& start,
                                    const std::array<int64_t, 2>& before) {
  const RoundRows rows(tokens, before, !form.fixed_rows);
  MixerState apart = copy_of(start), together = copy_of(start);
  const auto step = [&](MixerState& state, size_t row) {
    return form.step(mixer, x.narrow(0, static_cast<int64_t>(row), 1), {rows.slots[row], rows.seen[row]}, state);
  };
  std::vector<Tensor> expected;
  std::vector<MixerState> after;  // the first sequence's state after each of its tokens
  for (size_t row = 0; row < rows.slots.size(); ++row) {
    expected.push_back(step(apart, row));
    if (rows.slots[row] == kPlaces[0]) after.push_back(apart.extract(kPlaces[0]));
  }
  StateJournal journal;
  const std::string what = " of a step of " + std::to_string(tokens) + (form.fixed_rows ? " tokens in 8 rows" : " tokens");
  const auto all = static_cast<int64_t>(rows.slots.size());
  Violation violation =
      different_bits("output" + what, form.run(mixer, x.narrow(0, 0, all), rows, together, &journal), torch::cat(expected));
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
  const auto index = [&](int64_t value) { return torch::full({1}, value, torch::kInt64).to(subject.device); };
  MixerState start = mixer->make_state(3);
  for (size_t i = 0; i < kPlaces.size(); ++i) {
    const Pass pass(Sequences::equal(1, before.at(i), subject.device), index(kPlaces.at(i)), index(0));
    mixer->prefill(drawn_rows(subject, before.at(i), dtype), start, pass);
  }
  for (const bool fixed_rows : {false, true}) {
    if (!fixed_rows && !subject.device.is_cpu()) continue;
    for (int64_t tokens = 1; tokens <= 8; ++tokens) {
      const Tensor x = drawn_rows(subject, tokens + (tokens + 1) / 2, dtype);
      const Violation violation = compare_with_single_steps(*mixer, x, {fixed_rows, subject.device}, tokens, start, before);
      if (!violation.empty()) return violation;
    }
  }
  return {};
}

}  // namespace based::laws
